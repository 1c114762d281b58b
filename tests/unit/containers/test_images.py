"""How an image of ours is built: with which tools, by which steps, and what is said when one is missing or fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers import images
from containers.images import BASE_TAG, RECIPES, base_maker, base_steps, build, build_command
from containers.tools import Tool
from matrix.catalog import load
from matrix.errors import MatrixError
from tests.unit.containers.shell import Shell, desk


@pytest.fixture(autouse=True)
def no_other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own tools do not count."""
    which = images.shutil.which
    monkeypatch.setattr(
        images.shutil, "which", lambda name, path: which(name, path=path.replace("/usr/sbin", "/nonexistent"))
    )


def test_the_steps_go_from_debian_s_packages_to_the_recipe(tmp_path: Path) -> None:
    shell, said = Shell(), list[str]()
    environ = desk(tmp_path, "podman", "debootstrap")
    digest = build("debian-mpi", "localhost/megatrix/debian-13:latest", said.append, environ=environ, run=shell, user=0)
    asked = [words[:2] for words in shell.asked]
    assert asked[1:] == [
        ["debootstrap", "--variant=minbase"],
        ["tar", "-C"],
        ["podman", "import"],
        ["podman", "build"],
        ["podman", "image"],
    ]
    assert digest == "sha256:4cd62cad08b9"
    assert len(said) == 4


def test_without_root_mmdebstrap_makes_the_base_and_the_mirror_is_handed_on(tmp_path: Path) -> None:
    maker = base_maker(desk(tmp_path, "debootstrap", "mmdebstrap"), user=1000)
    ((_, command),) = base_steps(maker, tmp_path, tmp_path / "base.tar", "http://mirror/debian")
    assert Path(command[0]).name == "mmdebstrap"
    assert command[-1] == "http://mirror/debian"


@pytest.mark.parametrize(("user", "tools", "fix"), [(0, (), "debootstrap"), (1000, ("debootstrap",), "mmdebstrap")])
def test_a_missing_tool_is_named_with_what_to_install(
    tmp_path: Path, user: int, tools: tuple[str, ...], fix: str
) -> None:
    environ = desk(tmp_path, "podman", *tools)
    with pytest.raises(MatrixError, match=f"apt-get install {fix}"):
        build("debian-mpi", "any", print, environ=environ, run=Shell(), user=user)


def test_without_a_container_tool_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="apt-get install podman"):
        build("debian-mpi", "any", print, environ=desk(tmp_path, "debootstrap"), run=Shell(), user=0)


def test_a_step_that_fails_is_told_with_its_last_words_and_no_credentials(tmp_path: Path) -> None:
    environ = desk(tmp_path, "podman", "debootstrap")
    with pytest.raises(MatrixError, match="making trixie with debootstrap") as caught:
        build("debian-mpi", "any", print, environ=environ, run=Shell("debootstrap"), user=0)
    assert "Failed getting release file" in str(caught.value)
    assert "token" not in str(caught.value)


def test_only_podman_is_given_its_isolation() -> None:
    assert "--isolation=chroot" in build_command(Tool("/bin/podman"), "debian-mpi", "any")
    command = build_command(Tool("/bin/docker"), "debian-mpi", "any")
    assert "--isolation=chroot" not in command
    assert f"BASE={BASE_TAG}" in command


def test_every_image_of_the_catalog_has_its_recipe() -> None:
    for image in load().images:
        assert (RECIPES / image.recipe / "Containerfile").is_file()
        assert "python3-torch" in (RECIPES / image.recipe / "packages").read_text().split()
