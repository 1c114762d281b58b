"""Runs cases: from a plan to records."""
