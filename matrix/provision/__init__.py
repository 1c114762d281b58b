"""What cells are made of: interpreters, indexes, sources, overlays, images, drivers."""
