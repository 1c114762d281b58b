"""How images are made: with which tools, by which steps, and what is said when one is missing or fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from matrix.errors import MatrixError
from matrix.provision.images import BASE_TAG, WORDS, Builder, base_maker, base_steps, brief, containerfile
from matrix.provision.trees import LAYOUTS
from tests.unit.provision.shell import Shell, desk

TAG = "localhost/megatrix/debian-13:latest"


@pytest.fixture(autouse=True)
def no_other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own tools do not count."""
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path: which(name, path=path.replace("/usr/sbin", "/nonexistent")))


def builder(shell: Shell, environ: dict[str, str], said: list[str] | None = None, user: int = 0) -> Builder:
    """A builder at a desk, as root unless told."""
    pip = {"PIP_CONFIG_FILE": "/dev/null"}  # this machine's own configuration does not count either
    return Builder((lambda _: None) if said is None else said.append, {**pip, **environ}, run=shell, user=user)


def built(shell: Shell) -> list[str]:
    """The words of the build that was asked for."""
    (words,) = [words for words in shell.asked if words[1] == "build"]
    return words


def test_the_steps_go_from_debian_s_packages_to_the_image(tmp_path: Path) -> None:
    shell, said = Shell(), list[str]()
    made = builder(shell, desk(tmp_path, "podman", "debootstrap"), said).debian(["python3-torch", "openmpi-bin"], TAG)
    asked = [words[:2] for words in shell.asked]
    assert asked[1:] == [
        ["debootstrap", "--variant=minbase"],
        ["tar", "-C"],
        ["podman", "import"],
        ["podman", "build"],
        ["podman", "image"],
    ]
    assert {f"BASE={BASE_TAG}", "PACKAGES=python3-torch openmpi-bin"} < set(built(shell))
    assert made == "sha256:4cd62cad08b9"
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
    with pytest.raises(MatrixError, match=f"apt-get install {fix}"):
        builder(Shell(), desk(tmp_path, "podman", *tools), user=user).debian([], TAG)


def test_without_a_container_tool_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="apt-get install podman"):
        builder(Shell(), desk(tmp_path, "debootstrap"))


def test_a_step_that_fails_is_told_with_its_last_words_and_no_credentials(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="making trixie with debootstrap") as caught:
        builder(Shell("debootstrap"), desk(tmp_path, "podman", "debootstrap")).debian([], TAG)
    assert "Failed getting release file" in str(caught.value)
    assert "token" not in str(caught.value)


@pytest.mark.parametrize(("tool", "isolated"), [("podman", True), ("docker", False)])
def test_only_podman_is_given_its_isolation(tmp_path: Path, tool: str, isolated: bool) -> None:
    shell = Shell()
    builder(shell, desk(tmp_path, tool)).lay(TAG, "any", mcore="0.15.2")
    assert isolated == ("--isolation=chroot" in built(shell))


def test_releases_are_laid_over_an_image(tmp_path: Path) -> None:
    shell = Shell()
    builder(shell, desk(tmp_path, "podman")).lay(TAG, "any", mcore="0.15.2", te="2.5.0", packages=["python3-pip"])
    assert {f"BASE={TAG}", "MCORE=0.15.2", "TE=2.5.0", "PACKAGES=python3-pip"} < set(built(shell))
    assert not [word for word in built(shell) if word.startswith(("--secret", "--volume"))]


def test_pip_s_configuration_goes_in_as_a_secret_and_is_gone_afterwards(tmp_path: Path) -> None:
    shell, links = Shell(), tmp_path / "links"
    links.mkdir()
    index = {"PIP_INDEX_URL": "https://me:token@mirror/simple", "PIP_FIND_LINKS": str(links), "PIP_CERT": "/ca.pem"}
    builder(shell, {**desk(tmp_path, "podman"), **index}).lay(TAG, "any", mcore="0.15.2")
    words = built(shell)
    assert f"--volume={links}:/run/megatrix/0:ro" in words
    assert "--secret=id=cert,src=/ca.pem" in words
    (file,) = [word.partition("src=")[2] for word in words if word.startswith("--secret=id=pip.conf")]
    assert not Path(file).exists()
    assert "token" not in " ".join(words)


def test_docker_can_t_be_given_folders_and_it_says_what_to_do(tmp_path: Path) -> None:
    environ = {**desk(tmp_path, "docker"), "PIP_FIND_LINKS": str(tmp_path)}
    with pytest.raises(MatrixError, match="PIP_CONFIG_FILE"):
        builder(Shell(), environ).lay(TAG, "any", mcore="0.15.2")


def test_docker_without_buildx_knows_no_secrets_and_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="docker-buildx") as caught:
        builder(Shell("buildx"), desk(tmp_path, "docker")).lay(TAG, "any", mcore="0.15.2")
    assert "podman" in str(caught.value)


def test_an_image_of_ours_needs_nothing_that_docker_s_own_builder_lacks(tmp_path: Path) -> None:
    """It stops before the stage that has secrets."""
    shell = Shell("buildx")
    builder(shell, desk(tmp_path, "docker", "debootstrap")).debian([], TAG)
    assert "--target=plain" in built(shell)
    plain, laid = containerfile().read_text("utf-8").split(" AS laid")
    assert "FROM ${BASE} AS plain" in plain
    assert "--mount" not in plain
    assert "--mount" in laid


def test_an_image_that_is_here_is_not_fetched_again(tmp_path: Path) -> None:
    shell = Shell()
    assert builder(shell, desk(tmp_path, "podman")).fetch("registry/image:1") == "sha256:4cd62cad08b9"
    assert "pull" not in {words[1] for words in shell.asked}


def test_a_registry_that_is_not_reached_is_told_with_the_way_round_it(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="`podman pull` where it is reached") as caught:
        builder(Shell("image", "pull"), desk(tmp_path, "podman")).fetch("registry/image:1")
    assert "podman pull registry/image:1" in str(caught.value)


def test_a_long_line_of_a_complaint_is_cut_in_its_middle() -> None:
    told = brief(f"(from versions: {'0.1.0, ' * WORDS})\nNo matching distribution")
    assert len(told) < WORDS + 100
    assert told.startswith("(from versions")
    assert told.endswith(")\nNo matching distribution")


def test_of_a_build_that_pip_ends_pip_s_own_words_are_told() -> None:
    assert brief('ERROR: No such release\nError: building at STEP "RUN set -eu; ..."') == "ERROR: No such release"


def test_the_containerfile_takes_its_parameters_and_the_packages_that_make_up_a_release() -> None:
    text = containerfile().read_text("utf-8")
    for name in ("BASE", "PACKAGES", "MCORE", "TE", "CUDA"):
        assert f"ARG {name}" in text
    for package in LAYOUTS["transformer-engine"].releases:
        assert f'"{package.replace("cu12", "cu${CUDA}")}==${{TE}}"' in text
