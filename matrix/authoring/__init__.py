"""For the author of a failure: a skeleton, checks of one entry, examples kept from a run, the catalog as data."""
