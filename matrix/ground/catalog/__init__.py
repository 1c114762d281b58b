"""The catalog: bases, releases, drivers, failures, and the cells that they form."""
