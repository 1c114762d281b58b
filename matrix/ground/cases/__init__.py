"""The cases that the catalog makes possible, and what each requires of a machine."""
