"""Fake container tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matrix.read.commands import CommandResult


class Shell:
    """Runs nothing: records `commands`, returns fixed results. `broken` names tools and words that fail."""

    def __init__(self, *broken: str) -> None:
        self.broken, self.commands = broken, list[list[str]]()

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        words = [Path(command[0]).name, *command[1:]]
        self.commands.append(words)
        if any(word in self.broken for word in words):
            return CommandResult(1, err="E: Failed getting release file https://me:token@mirror/dists")
        return CommandResult(0, "4cd62cad08b9\n")


def with_tools(folder: Path, *tools: str) -> dict[str, str]:
    """Return an environment with these tools on PATH."""
    for tool in tools:
        (folder / tool).touch()
        (folder / tool).chmod(0o755)
    return {"PATH": str(folder)}
