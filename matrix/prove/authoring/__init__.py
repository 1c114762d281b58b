"""Tools for authors of failures: a template, checks of an entry, examples from a run, export of the catalog."""
