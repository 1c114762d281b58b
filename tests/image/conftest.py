"""The requirements of the image tests: podman or docker, the image, clones. Without them the tests fail."""

from __future__ import annotations

import pytest

from matrix.ground.catalog import loading
from matrix.prove.provision.image_builds import Builder, BuildRequest, build
from matrix.prove.provision.tools import NO_TOOL, Tool, find
from tests.real.conftest import megatrix, temporary

__all__ = ["megatrix", "temporary"]


@pytest.fixture(scope="session")
def tool() -> Tool:
    """Return podman or docker, and build the image (100 s on 2 cores) if it is missing."""
    found = find()
    if found is None:
        pytest.fail(NO_TOOL, pytrace=False)
    (image,) = loading.load().images
    if not found.image(image.tag):
        build(BuildRequest(image), Builder(print))
    return found
