"""Whether the compiled packages of an environment load: read from files, nothing is imported or run."""
