"""What is kept: plans, journals, the history, without secrets."""
