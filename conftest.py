"""Settings of pytest: loads the plugin that turns the cases of a plan into tests."""

from contextlib import suppress

pytest_plugins = ["matrix.execution.plugin"]

with suppress(ImportError):  # cells have no hypothesis
    from hypothesis import settings

    # The machines are shared and noisy: no test is judged by its time, hypothesis's own deadline included.
    settings.register_profile("shared machines", deadline=None)
    settings.load_profile("shared machines")
