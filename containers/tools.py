"""podman and docker: the tools that run a command in an image, and what is asked of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from containers.commands import Answer, Runner, run

NAMES: Final = ("podman", "docker")  # in order of preference: podman needs no daemon and no root
ANSWER_S: Final = 60.0  # seconds for a question; podman answers in 0.1 s, and takes longer with many images
NO_TOOL: Final = "needs podman or docker (Debian, Ubuntu: apt-get install podman)"


@dataclass(frozen=True)
class Tool:
    """podman or docker: its path, and how it is asked."""

    path: str
    run: Runner = run

    @property
    def name(self) -> str:
        """Return "podman" or "docker"."""
        return Path(self.path).name

    def ask(self, *arguments: str, seconds: float = ANSWER_S) -> Answer:
        """Run a command of it."""
        return self.run([self.path, *arguments], seconds=seconds)

    def image(self, tag: str) -> str:
        """Return the image's content digest ("sha256:..."), "" when it is not here."""
        answer = self.ask("image", "inspect", "--format", "{{.Id}}", tag)
        digest = answer.out.strip().removeprefix("sha256:")
        return f"sha256:{digest}" if answer.code == 0 and digest else ""


def find(environ: Mapping[str, str] = os.environ, run: Runner = run) -> Tool | None:
    """Return the first of podman and docker that works here; docker's client without its daemon does not."""
    for name in NAMES:
        path = shutil.which(name, path=environ.get("PATH", os.defpath))
        if path and Tool(path, run).ask("info").code == 0:
            return Tool(path, run)
    return None
