"""Provide the parts of a cell: interpreters, package indexes, sources, overlays, images, drivers."""
