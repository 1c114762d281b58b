"""`megatrix build`: requests, errors and the order of the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from matrix.catalog.model import Container, Image
from matrix.errors import MatrixError
from matrix.provision.building import BuildRequest, build, build_request
from matrix.provision.images import Builder
from tests.unit.catalogs import real
from tests.unit.provision.shell import Shell, with_tools


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
        ("nemo-25.09", {"te": "2.9.0"}, "CUDA=13"),
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
