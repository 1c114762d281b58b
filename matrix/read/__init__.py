"""Readers that know nothing of failures: APIs, compiled files, git, packages, this machine."""
