"""Rules for names and documents that no linter has: a part of `tox run -e lint`."""
