"""Storage of plans, journals and the history, without secrets."""
