"""podman and docker: which is taken, and how an image is named."""

from __future__ import annotations

from pathlib import Path

from containers.tools import Tool, find
from tests.unit.containers.shell import Shell, desk


def test_podman_goes_before_docker_and_one_that_does_not_answer_is_none(tmp_path: Path) -> None:
    """docker's client is often there without its daemon."""
    environ = desk(tmp_path, "podman", "docker")
    assert find(environ, Shell()) is not None
    found = find(environ, Shell("podman"))
    assert found is not None
    assert found.name == "docker"
    assert find(environ, Shell("info")) is None


def test_an_image_is_named_by_its_content(tmp_path: Path) -> None:
    assert Tool("/bin/podman", Shell()).image("localhost/any") == "sha256:4cd62cad08b9"
    assert Tool("/bin/podman", Shell("inspect")).image("localhost/any") == ""
