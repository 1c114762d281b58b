"""Image builds: tools, steps, and errors of a missing tool or a failed step."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.model import Container, Image
from matrix.ground.errors import MatrixError
from matrix.prove.provision.image_builds import (
    BASE_TAG,
    LINE_CHARS,
    Builder,
    BuildRequest,
    base_maker,
    base_steps,
    brief,
    build,
    build_request,
    containerfile,
)
from matrix.read.trees import LAYOUTS
from tests.unit.catalogs import real
from tests.unit.prove.provision.shell import Shell, with_tools

TAG = "localhost/megatrix/debian-13:latest"


@pytest.fixture(autouse=True)
def no_other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the tools of this machine."""
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path: which(name, path=path.replace("/usr/sbin", "/nonexistent")))


def builder(shell: Shell, environ: dict[str, str], lines: list[str] | None = None, user: int = 0) -> Builder:
    """Return a builder with a fake shell, by default as root; `lines` collects its progress."""
    pip = {"PIP_CONFIG_FILE": "/dev/null"}  # ignore the configuration of this machine
    return Builder((lambda _: None) if lines is None else lines.append, {**pip, **environ}, run=shell, user=user)


def built(shell: Shell) -> list[str]:
    """Return the command of the build."""
    (words,) = [words for words in shell.commands if words[1] == "build"]
    return words


def test_debian_packages_become_an_image(tmp_path: Path) -> None:
    shell, lines = Shell(), list[str]()
    made = builder(shell, with_tools(tmp_path, "podman", "debootstrap"), lines).debian(
        ["python3-torch", "openmpi-bin"], TAG
    )
    commands = [words[:2] for words in shell.commands]
    assert commands[1:] == [
        ["debootstrap", "--variant=minbase"],
        ["tar", "-C"],
        ["podman", "import"],
        ["podman", "build"],
        ["podman", "image"],
    ]
    assert {f"BASE={BASE_TAG}", "PACKAGES=python3-torch openmpi-bin"} < set(built(shell))
    assert made == "sha256:4cd62cad08b9"
    assert len(lines) == 4


def test_without_root_mmdebstrap_creates_the_base(tmp_path: Path) -> None:
    maker = base_maker(with_tools(tmp_path, "debootstrap", "mmdebstrap"), user=1000)
    ((_, command),) = base_steps(maker, tmp_path, tmp_path / "base.tar", "http://mirror/debian")
    assert Path(command[0]).name == "mmdebstrap"
    assert command[-1] == "http://mirror/debian"


@pytest.mark.parametrize(("user", "tools", "fix"), [(0, (), "debootstrap"), (1000, ("debootstrap",), "mmdebstrap")])
def test_a_missing_tool_names_its_package(tmp_path: Path, user: int, tools: tuple[str, ...], fix: str) -> None:
    with pytest.raises(MatrixError, match=f"apt-get install {fix}"):
        builder(Shell(), with_tools(tmp_path, "podman", *tools), user=user).debian([], TAG)


def test_without_a_container_tool_podman_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="apt-get install podman"):
        builder(Shell(), with_tools(tmp_path, "debootstrap"))


def test_a_failed_step_is_reported_without_credentials(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="making trixie with debootstrap") as caught:
        builder(Shell("debootstrap"), with_tools(tmp_path, "podman", "debootstrap")).debian([], TAG)
    assert "Failed getting release file" in str(caught.value)
    assert "token" not in str(caught.value)


@pytest.mark.parametrize(("tool", "isolated"), [("podman", True), ("docker", False)])
def test_only_podman_gets_its_isolation(tmp_path: Path, tool: str, isolated: bool) -> None:
    shell = Shell()
    builder(shell, with_tools(tmp_path, tool)).lay(TAG, "any", mcore="0.15.2")
    assert isolated == ("--isolation=chroot" in built(shell))


def test_releases_are_laid_over_an_image(tmp_path: Path) -> None:
    shell = Shell()
    builder(shell, with_tools(tmp_path, "podman")).lay(TAG, "any", mcore="0.15.2", te="2.5.0", packages=["python3-pip"])
    assert {f"BASE={TAG}", "MCORE=0.15.2", "TE=2.5.0", "PACKAGES=python3-pip"} < set(built(shell))
    assert not [word for word in built(shell) if word.startswith(("--secret", "--volume"))]


def test_pip_configuration_is_a_temporary_secret(tmp_path: Path) -> None:
    shell, links = Shell(), tmp_path / "links"
    links.mkdir()
    index = {"PIP_INDEX_URL": "https://me:token@mirror/simple", "PIP_FIND_LINKS": str(links), "PIP_CERT": "/ca.pem"}
    builder(shell, {**with_tools(tmp_path, "podman"), **index}).lay(TAG, "any", mcore="0.15.2")
    words = built(shell)
    assert f"--volume={links}:/run/megatrix/0:ro" in words
    assert "--secret=id=cert,src=/ca.pem" in words
    (file,) = [word.partition("src=")[2] for word in words if word.startswith("--secret=id=pip.conf")]
    assert not Path(file).exists()
    assert "token" not in " ".join(words)


def test_docker_with_local_folders_is_an_error(tmp_path: Path) -> None:
    environ = {**with_tools(tmp_path, "docker"), "PIP_FIND_LINKS": str(tmp_path)}
    with pytest.raises(MatrixError, match="PIP_CONFIG_FILE"):
        builder(Shell(), environ).lay(TAG, "any", mcore="0.15.2")


def test_docker_without_buildx_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="docker-buildx") as caught:
        builder(Shell("buildx"), with_tools(tmp_path, "docker")).lay(TAG, "any", mcore="0.15.2")
    assert "podman" in str(caught.value)


def test_a_debian_image_needs_no_buildx(tmp_path: Path) -> None:
    """The build stops before the stage with secrets."""
    shell = Shell("buildx")
    builder(shell, with_tools(tmp_path, "docker", "debootstrap")).debian([], TAG)
    assert "--target=plain" in built(shell)
    plain, laid = containerfile().read_text("utf-8").split(" AS laid")
    assert "FROM ${BASE} AS plain" in plain
    assert "--mount" not in plain
    assert "--mount" in laid


def test_a_local_image_is_not_pulled(tmp_path: Path) -> None:
    shell = Shell()
    assert builder(shell, with_tools(tmp_path, "podman")).fetch("registry/image:1") == "sha256:4cd62cad08b9"
    assert "pull" not in {words[1] for words in shell.commands}


def test_an_unreachable_registry_has_a_workaround(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="`podman pull` where it is reachable") as caught:
        builder(Shell("image", "pull"), with_tools(tmp_path, "podman")).fetch("registry/image:1")
    assert "podman pull registry/image:1" in str(caught.value)


def test_a_long_line_is_cut_in_its_middle() -> None:
    text = brief(f"(from versions: {'0.1.0, ' * LINE_CHARS})\nNo matching distribution")
    assert len(text) < LINE_CHARS + 100
    assert text.startswith("(from versions")
    assert text.endswith(")\nNo matching distribution")


def test_an_error_of_pip_is_shown_alone() -> None:
    assert brief('ERROR: No such release\nError: building at STEP "RUN set -eu; ..."') == "ERROR: No such release"


def test_the_containerfile_has_arguments_and_te_packages() -> None:
    text = containerfile().read_text("utf-8")
    for name in ("BASE", "PACKAGES", "MCORE", "TE", "CUDA"):
        assert f"ARG {name}" in text
    for package in LAYOUTS["transformer-engine"].releases:
        assert f'"{package.replace("cu12", "cu${CUDA}")}==${{TE}}"' in text


def request_for(name: str, **given: Any) -> BuildRequest:
    return build_request(real(), name, **given)


@pytest.mark.parametrize(
    ("name", "given", "tag"),
    [
        ("debian-13", {}, "localhost/megatrix/debian-13:latest"),
        ("debian-13", {"mcore": "0.15.2"}, "localhost/megatrix/debian-13:mcore-0.15.2"),
        ("debian-13", {"te": "2.5.0"}, "localhost/megatrix/debian-13:te-2.5.0"),
        ("ngc-24.07", {"mcore": "0.8.0", "te": "1.9.0"}, "localhost/megatrix/ngc-24.07:mcore-0.8.0-te-1.9.0"),
    ],
)
def test_the_tag_names_the_releases(name: str, given: dict[str, str], tag: str) -> None:
    assert request_for(name, **given).tag == tag


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("debain-13", {}, "did you mean debian-13"),
        ("ngc-24.7", {"te": "1.9.0"}, "did you mean ngc-24.07"),
        ("torch-2.4.0", {"mcore": "0.8.0"}, "no such image"),
        ("ngc-24.07", {}, "podman or docker pull"),
        ("ngc-24.07", {"te": "1.9.0", "mirror": "http://mirror"}, "leave it out"),
        ("debian-13", {"mcore": "0.51.2"}, "no release of megatron-core"),
        ("debian-13", {"te": "1.9"}, "did you mean 1.9.0"),
        ("ngc-24.07", {"te": "1.8.0"}, "that is on PyPI"),
        ("ngc-24.07", {"mcore": "0.17.0"}, "needs Python"),
        ("ngc-25.08", {"te": "2.6.0"}, "--te 2.9.0 or later"),
        ("nemo-24.07", {"te": "2.9.0"}, "CUDA=13"),
    ],
)
def test_an_impossible_request_is_refused_with_a_fix(name: str, given: dict[str, str], words: str) -> None:
    with pytest.raises(MatrixError, match=words):
        request_for(name, **given)


@pytest.mark.parametrize(
    ("name", "te", "cuda"), [("debian-13", "2.9.0", "12"), ("ngc-24.07", "1.9.0", "12"), ("ngc-25.08", "2.9.0", "13")]
)
def test_te_is_for_the_cuda_of_the_image(tmp_path: Path, name: str, te: str, cuda: str) -> None:
    shell = Shell()
    environ = {**with_tools(tmp_path, "podman"), "PIP_CONFIG_FILE": "/dev/null"}
    build(request_for(name, te=te), Builder(lambda _: None, environ, run=shell))
    (words,) = [words for words in shell.commands if words[1] == "build"]
    assert {f"TE={te}", f"CUDA={cuda}"} < set(words)


@pytest.mark.parametrize(
    "mirror",
    [
        "http://me:s3cr3t@mirror/debian",
        "https://me@mirror/debian",
        "file:///srv/debian",
        "/srv/debian",
        "http://[",
        "mirror",
    ],
)
def test_a_private_mirror_is_refused(mirror: str) -> None:
    """It stays in the image, so it must have neither a password nor a folder of this machine."""
    with pytest.raises(MatrixError, match=r"sources\.list") as caught:
        request_for("debian-13", mirror=mirror)
    assert "s3cr3t" not in str(caught.value)


def test_a_public_mirror_is_accepted() -> None:
    assert (
        request_for("debian-13", mirror="http://mirror.example:8080/debian").tag
        == "localhost/megatrix/debian-13:latest"
    )


def steps(tmp_path: Path, request: BuildRequest, *broken: str) -> list[str]:
    """Return the progress lines of a build."""
    lines: list[str] = []
    environ = {**with_tools(tmp_path, "podman", "debootstrap"), "PIP_CONFIG_FILE": "/dev/null"}
    build(request, Builder(lines.append, environ, run=Shell(*broken), user=0))
    return lines


def test_a_debian_image_is_rebuilt(tmp_path: Path) -> None:
    assert steps(tmp_path, request_for("debian-13"))[-1] == "building localhost/megatrix/debian-13:latest"


def test_a_release_is_laid_over_a_local_image(tmp_path: Path) -> None:
    lines = steps(tmp_path, request_for("debian-13", mcore="0.15.2"))
    assert lines == ["building localhost/megatrix/debian-13:mcore-0.15.2"]


def test_a_missing_base_image_is_built_first(tmp_path: Path) -> None:
    lines = steps(tmp_path, request_for("debian-13", mcore="0.15.2"), "image")
    assert [text for text in lines if text.startswith("building")] == [
        "building localhost/megatrix/debian-13:latest",
        "building localhost/megatrix/debian-13:mcore-0.15.2",
    ]


def test_an_image_of_a_registry_is_pulled_first(tmp_path: Path) -> None:
    lines = steps(tmp_path, request_for("ngc-24.07", te="1.9.0"), "image")
    assert [text.split(" ")[0] for text in lines] == ["fetching", "building"]


def test_docker_without_buildx_pulls_nothing(tmp_path: Path) -> None:
    shell = Shell("buildx", "image")
    environ = {**with_tools(tmp_path, "docker"), "PIP_CONFIG_FILE": "/dev/null"}
    with pytest.raises(MatrixError, match="docker-buildx"):
        build(request_for("ngc-24.07", te="1.9.0"), Builder(lambda _: None, environ, run=shell))
    assert "pull" not in {words[1] for words in shell.commands}


def test_each_te_release_on_pypi_has_its_cuda() -> None:
    assert all(bool(release.cuda) == release.on_pypi for release in real().transformer_engine)


def test_images_of_the_catalog_have_torch() -> None:
    for image in real().images:
        assert "python3-torch" in image.packages
    assert {type(one) for one in (*real().images, *real().containers)} == {Image, Container}
