"""The site's package indexes, for pip inside of an image build.

This machine's pip configuration goes in as a secret (indexes contain passwords). Folders of this machine are mounted
read-only at fixed paths, so that neither a password nor a path of this machine stays in a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from matrix.provision.indexes import place

# An empty folder of that name stays in the layer; the name reveals nothing of this machine.
MOUNTS: Final = "/run/megatrix"
SECRETS: Final = "/run/secrets"
# Options for the origin and the download of packages; those that restrict the choice of packages are not passed on.
AS_IT_IS: Final = ("no-index", "trusted-host", "proxy", "timeout", "retries")
FILES: Final = ("cert", "client-cert")


@dataclass(frozen=True)
class PipInside:
    """pip's configuration file for the build (it may contain passwords), with the folders and files that it refers to.

    `folders` maps folders of this machine to their paths inside; `files` are secrets by their id.
    """

    text: str = ""
    folders: Mapping[Path, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


def pip_inside(options: Mapping[str, str], exists: Callable[[Path], bool] = Path.exists) -> PipInside:
    """Return the settings of a build for `options` (matrix.provision.indexes.pip_options)."""
    folders: dict[Path, str] = {}

    def moved(link: str, index: bool) -> str | None:
        """Return the location inside of the build, None for a missing one, which pip would skip with a warning."""
        outside = place(link)
        if isinstance(outside, str):
            return link
        if not exists(outside):
            return None
        # An index may refer to files outside of its folder (../../files/x.whl); find-links may be a page in a folder.
        folder = outside.parent if index or outside.suffix in (".html", ".htm") else outside
        inside = folders.setdefault(folder, f"{MOUNTS}/{len(folders)}")
        path = f"{inside}/{outside.relative_to(folder)}".removesuffix("/.")
        return f"file://{path}" if index else path

    inside_options = {}
    for name in ("index-url", "extra-index-url", "find-links"):
        links = (moved(link, index=name != "find-links") for link in options.get(name, "").split())
        inside_options[name] = " ".join(filter(None, links))
    inside_options |= {name: options.get(name, "") for name in AS_IT_IS}
    files = {name: Path(options[name]).expanduser().absolute() for name in FILES if options.get(name)}
    inside_options |= {name: f"{SECRETS}/{name}" for name in files}
    lines = [f"{name} = {' '.join(value.split())}" for name, value in inside_options.items() if value]
    return PipInside("\n".join(["[global]", *lines, ""]) if lines else "", folders, files)
