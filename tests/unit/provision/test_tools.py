"""podman and docker: which is taken, and how an image is named."""

from __future__ import annotations

import shutil
from pathlib import Path

from matrix.provision.tools import ContainerSpec, Ref, Tool, find
from tests.unit.provision.shell import Shell, desk


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


def test_a_container_s_shared_memory_is_as_large_as_the_machine_s() -> None:
    """podman's and docker's 64 MB would make a DataLoader fail that does not fail here."""
    command = Tool("/bin/podman", Shell()).command(
        Ref("any", "localhost/any"), ContainerSpec("name", Path("/project")), "true"
    )
    assert f"--shm-size={shutil.disk_usage('/dev/shm').total}" in command
