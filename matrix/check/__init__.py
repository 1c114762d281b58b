"""What would break here, before anything is run."""
