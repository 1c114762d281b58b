"""Checks of a stack or a machine against the catalog, without running a case."""
