"""A Slurm of two nodes with Pyxis, and the image as a file that Pyxis mounts. Missing tools fail the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.ground.catalog import loading
from matrix.prove.provision.tools import IMAGES, Tool
from tests.image.conftest import tool
from tests.slurm import pyxis
from tests.slurm.cluster import Cluster, wait
from tests.slurm.conftest import Site
from tests.slurm.pyxis import Pyxis

__all__ = ["tool"]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Pyxis:
    return pyxis.build(tmp_path_factory.mktemp("pyxis"))


@pytest.fixture(scope="session")
def images(tool: Tool, built: Pyxis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder with the image's file, 1 GB."""
    (image,) = loading.load().images
    file = tmp_path_factory.mktemp("images") / f"{image.id}.sqsh"
    pyxis.import_image(tool.path, image.tag, file, built)
    yield file.parent
    file.unlink()


@pytest.fixture(scope="session")
def cluster(built: Pyxis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with built.cluster(tmp_path_factory.mktemp("slurm") / "cluster") as made:
        yield made


@pytest.fixture
def site(cluster: Cluster, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The cluster with the image on its nodes. Fails if a process of the nodes outlives a test."""
    monkeypatch.setenv(IMAGES, str(images))
    made = Site(cluster, tmp_path / "out")
    yield made
    wait(lambda: not cluster.call("squeue", "-h"), "jobs are left", seconds=10)
    made.quiet()
