"""Upstream's history: which commits changed which function, and where its lines stand in each release."""
