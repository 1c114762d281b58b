"""Pure values and decisions, which both wings stand on: the catalog, cases, verdicts, errors."""
