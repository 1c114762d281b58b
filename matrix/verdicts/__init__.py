"""What happened in a case, and what that means against the catalog. Pure."""
