"""What is known: bases, releases, drivers, failures, and the cells they make."""
