"""The folder of a failure made by hand (tests/unit/catalogs.py): its code is hashed, and never run."""
