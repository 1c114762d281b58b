"""`megatrix build`: what its words ask for, what is refused, and in which order things are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from matrix.catalog.model import Container, Image
from matrix.errors import MatrixError
from matrix.provision.building import BuildRequest, build, build_request
from matrix.provision.images import Builder
from tests.unit.catalogs import real
from tests.unit.provision.shell import Shell, desk


def wish(name: str, **given: Any) -> BuildRequest:
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
def test_the_tag_says_what_is_in_it(name: str, given: dict[str, str], tag: str) -> None:
    assert wish(name, **given).tag == tag


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
def test_what_can_t_be_is_refused_with_a_way_on(name: str, given: dict[str, str], words: str) -> None:
    with pytest.raises(MatrixError, match=words):
        wish(name, **given)


@pytest.mark.parametrize(
    ("name", "te", "cuda"), [("debian-13", "2.9.0", "12"), ("ngc-24.07", "1.9.0", "12"), ("ngc-25.08", "2.9.0", "13")]
)
def test_transformer_engine_s_library_is_for_the_image_s_cuda(tmp_path: Path, name: str, te: str, cuda: str) -> None:
    shell = Shell()
    environ = {**desk(tmp_path, "podman"), "PIP_CONFIG_FILE": "/dev/null"}
    build(wish(name, te=te), Builder(lambda _: None, environ, run=shell))
    (words,) = [words for words in shell.asked if words[1] == "build"]
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
def test_a_mirror_stays_in_the_image_so_it_has_neither_a_password_nor_a_folder_of_this_machine(mirror: str) -> None:
    with pytest.raises(MatrixError, match=r"sources\.list") as caught:
        wish("debian-13", mirror=mirror)
    assert "s3cr3t" not in str(caught.value)


def test_a_mirror_that_anybody_may_know_is_taken() -> None:
    assert wish("debian-13", mirror="http://mirror.example:8080/debian").tag == "localhost/megatrix/debian-13:latest"


def steps(tmp_path: Path, asked: BuildRequest, *broken: str) -> list[str]:
    """What the builder says that it does."""
    said: list[str] = []
    environ = {**desk(tmp_path, "podman", "debootstrap"), "PIP_CONFIG_FILE": "/dev/null"}
    build(asked, Builder(said.append, environ, run=Shell(*broken), user=0))
    return said


def test_an_image_of_ours_is_made_anew(tmp_path: Path) -> None:
    assert steps(tmp_path, wish("debian-13"))[-1] == "building localhost/megatrix/debian-13:latest"


def test_a_release_is_laid_over_the_image_that_is_here(tmp_path: Path) -> None:
    told = steps(tmp_path, wish("debian-13", mcore="0.15.2"))
    assert told == ["building localhost/megatrix/debian-13:mcore-0.15.2"]


def test_the_image_under_it_is_made_first_where_it_is_not_here(tmp_path: Path) -> None:
    told = steps(tmp_path, wish("debian-13", mcore="0.15.2"), "image")
    assert [text for text in told if text.startswith("building")] == [
        "building localhost/megatrix/debian-13:latest",
        "building localhost/megatrix/debian-13:mcore-0.15.2",
    ]


def test_a_registry_s_image_is_fetched_first(tmp_path: Path) -> None:
    told = steps(tmp_path, wish("ngc-24.07", te="1.9.0"), "image")
    assert [text.split(" ")[0] for text in told] == ["fetching", "building"]


def test_where_docker_can_t_lay_releases_nothing_is_fetched_first(tmp_path: Path) -> None:
    shell = Shell("buildx", "image")
    environ = {**desk(tmp_path, "docker"), "PIP_CONFIG_FILE": "/dev/null"}
    with pytest.raises(MatrixError, match="docker-buildx"):
        build(wish("ngc-24.07", te="1.9.0"), Builder(lambda _: None, environ, run=shell))
    assert "pull" not in {words[1] for words in shell.asked}


def test_the_catalog_has_the_cuda_of_each_release_of_transformer_engine_that_pip_can_have() -> None:
    assert all(bool(release.cuda) == release.on_pypi for release in real().transformer_engine)


def test_the_images_of_the_catalog_have_torch_and_a_name() -> None:
    for image in real().images:
        assert "python3-torch" in image.packages
    assert {type(one) for one in (*real().images, *real().containers)} == {Image, Container}
