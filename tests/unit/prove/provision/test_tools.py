"""podman and docker: the choice between them, images and container settings."""

from __future__ import annotations

import shutil
from pathlib import Path

from matrix.prove.provision.tools import ContainerSpec, Ref, Tool, find
from tests.unit.prove.provision.shell import Shell, with_tools


def test_podman_is_preferred_to_docker(tmp_path: Path) -> None:
    """A tool that fails does not count: docker's client may be installed without its daemon."""
    environ = with_tools(tmp_path, "podman", "docker")
    assert find(environ, Shell()) is not None
    found = find(environ, Shell("podman"))
    assert found is not None
    assert found.name == "docker"
    assert find(environ, Shell("info")) is None


def test_an_image_has_its_content_digest(tmp_path: Path) -> None:
    assert Tool("/bin/podman", Shell()).image("localhost/any") == "sha256:4cd62cad08b9"
    assert Tool("/bin/podman", Shell("inspect")).image("localhost/any") == ""


def test_a_container_has_the_machines_shared_memory() -> None:
    """With the default of 64 MB, a DataLoader fails that does not fail on the machine."""
    command = Tool("/bin/podman", Shell()).command(
        Ref("any", "localhost/any"), ContainerSpec("name", Path("/project")), "true"
    )
    assert f"--shm-size={shutil.disk_usage('/dev/shm').total}" in command


def test_memory_limit_of_a_container_includes_swap() -> None:
    spec = ContainerSpec("name", Path("/project"), memory=7)
    command = Tool("/bin/podman", Shell()).command(Ref("a", "a:1"), spec)
    assert [word for word in command if "memory" in word] == ["--memory=7", "--memory-swap=7"]


def test_compiled_libraries_load_from_the_temporary_folder() -> None:
    """podman and docker mount a tmpfs with noexec: Triton and torch's extensions could not load what they compile."""
    command = Tool("/bin/podman", Shell()).command(Ref("a", "a:1"), ContainerSpec("name", Path("/project")))
    assert "--tmpfs=/tmp:exec" in command
