"""The choice of the cases to run, with reasons. Pure functions."""
