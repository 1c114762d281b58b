"""The room that provides: interpreters, package indexes, packages under test and the overlays made of them."""
