"""Settings of the project's own tests."""

from __future__ import annotations

from hypothesis import settings

# The machines are shared and noisy: no test is judged by its time, hypothesis's own deadline included.
settings.register_profile("shared machines", deadline=None)
settings.load_profile("shared machines")
