"""Which cases are run, and why. Pure."""
