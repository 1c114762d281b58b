"""Run the cases of a plan and write their records."""
