"""Outcomes of cases and their verdicts against the catalog. Pure functions."""
