"""`megatrix build`: the image that the words name, and its digest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from matrix.cli import build as command
from matrix.cli.main import main
from matrix.prove.provision.image_builds import BuildRequest


class Builder:
    """Stands for podman or docker."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self.progress = progress


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, handlers: None) -> list[tuple[BuildRequest, str]]:
    requests: list[tuple[BuildRequest, str]] = []

    def build(request: BuildRequest, builder: Builder, mirror: str) -> str:
        builder.progress("making it")
        requests.append((request, mirror))
        return "sha256:ab"

    monkeypatch.setattr(command, "Builder", Builder)
    monkeypatch.setattr(command, "build", build)
    return requests


def test_tag_and_digest_are_printed(built: list[tuple[BuildRequest, str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "debian-13", "--mcore", "0.15.2", "--mirror", "http://mirror/debian"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["making it", "localhost/megatrix/debian-13:mcore-0.15.2 sha256:ab"]
    ((request, mirror),) = built
    assert (request.mcore, request.te, mirror) == ("0.15.2", "", "http://mirror/debian")


def test_an_unknown_image_is_refused(built: list[tuple[BuildRequest, str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "debian-12"]) == 2
    assert "did you mean debian-13?" in capsys.readouterr().err
    assert built == []
