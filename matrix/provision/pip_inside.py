"""The site's package indexes, as pip is told of them inside of an image that is built.

What pip is configured with here goes in as a secret (indexes carry passwords), folders of this machine are mounted
read-only at places of their own, so that neither a password nor a path of this machine stays in a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from matrix.provision.indexes import place

# An empty folder of that name stays in the layer: a name that says nothing of this machine.
MOUNTS: Final = "/run/megatrix"
SECRETS: Final = "/run/secrets"
# What says where packages come from and how they are fetched; what narrows the choice of them is not handed on.
AS_IT_IS: Final = ("no-index", "trusted-host", "proxy", "timeout", "retries")
FILES: Final = ("cert", "client-cert")


@dataclass(frozen=True)
class PipInside:
    """pip's configuration file as it is to be inside (it may hold passwords), and what goes in with it.

    `folders` maps folders of this machine to where they are inside; `files` are secrets by their id.
    """

    text: str = ""
    folders: Mapping[Path, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


def pip_inside(options: Mapping[str, str], exists: Callable[[Path], bool] = Path.exists) -> PipInside:
    """Return what `options` (matrix.provision.indexes.pip_options) come to inside of a build."""
    folders: dict[Path, str] = {}

    def moved(link: str, index: bool) -> str | None:
        """Return a location as it is inside, None where nothing is: pip would warn about it and go on."""
        here = place(link)
        if isinstance(here, str):
            return link
        if not exists(here):
            return None
        # An index may lead to files beside itself (../../files/x.whl); find-links may be a page in a folder.
        folder = here.parent if index or here.suffix in (".html", ".htm") else here
        inside = folders.setdefault(folder, f"{MOUNTS}/{len(folders)}")
        path = f"{inside}/{here.relative_to(folder)}".removesuffix("/.")
        return f"file://{path}" if index else path

    told = {}
    for name in ("index-url", "extra-index-url", "find-links"):
        links = (moved(link, index=name != "find-links") for link in options.get(name, "").split())
        told[name] = " ".join(filter(None, links))
    told |= {name: options.get(name, "") for name in AS_IT_IS}
    files = {name: Path(options[name]).expanduser().absolute() for name in FILES if options.get(name)}
    told |= {name: f"{SECRETS}/{name}" for name in files}
    lines = [f"{name} = {' '.join(value.split())}" for name, value in told.items() if value]
    return PipInside("\n".join(["[global]", *lines, ""]) if lines else "", folders, files)
