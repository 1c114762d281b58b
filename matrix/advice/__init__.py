"""Advice before a job starts: what it will need, from formulas whose basis was measured here."""
