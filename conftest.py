"""Settings of pytest: loads the plugin that turns the cases of a plan into tests."""

pytest_plugins = ["matrix.prove.execution.plugin"]
