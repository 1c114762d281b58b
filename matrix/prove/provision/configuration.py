"""A site's settings: its clones of upstream repositories, their URLs, and whether interpreters are downloaded.

They come from `megatrix.toml` in the checkout, or without one in the current folder; the environment overrides it:

    [sources]                                       MEGATRIX_MEGATRON_LM=/clones/Megatron-LM
    megatron-lm = "/clones/Megatron-LM"             MEGATRIX_TRANSFORMER_ENGINE=/clones/TransformerEngine
    transformer-engine = "../TransformerEngine"

    [upstreams]                                     MEGATRIX_MEGATRON_LM_URL=https://mirror.example/Megatron-LM.git
    megatron-lm = "https://mirror.example/Megatron-LM.git"

A relative path starts at the file's folder, in the environment at the current folder. Clones are only read; bare ones
suffice. Without a path, the clone that `megatrix sources fetch` made is used (matrix.prove.provision.clones).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.schema import read_toml
from matrix.ground.errors import MatrixError, closest
from matrix.prove.provision import clones, project

FILE: Final = "megatrix.toml"
CLONES: Final = {"megatron-lm": "Megatron-LM", "transformer-engine": "TransformerEngine"}


@dataclass(frozen=True)
class InterpreterSettings:
    """`download`: whether uv may download a Python that this machine lacks."""

    download: bool = True


@dataclass(frozen=True)
class Configuration:
    """A site's settings; `sources` maps "megatron-lm" and "transformer-engine" to clones, `upstreams` to URLs."""

    sources: Mapping[str, str] = field(default_factory=dict)
    upstreams: Mapping[str, str] = field(default_factory=dict)
    interpreters: InterpreterSettings = InterpreterSettings()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that give another process, in any folder, the same settings."""
        return {variable(name): path for name, path in self.sources.items()}

    def resolve(self, source: str) -> str:
        """Return "CLONE-NAME@REVISION" as "PATH@REVISION"; any other source unchanged.

        Raises MatrixError when the clone is not configured.
        """
        name, at, revision = source.partition("@")
        if not at or name not in CLONES:
            return source
        if name not in self.sources:
            raise MatrixError(
                f"needs a clone of {CLONES[name]}",
                got="none is configured",
                expected=f"{variable(name)}=PATH, or {name} under [sources] in {FILE}",
                fix="megatrix sources fetch",
            )
        return f"{self.sources[name]}@{revision}"


def variable(name: str) -> str:
    """Return the environment variable of a clone."""
    return f"MEGATRIX_{name.upper().replace('-', '_')}"


def load(environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> Configuration:
    """Read the configuration. Raises MatrixError for a wrong key or type."""
    folder = folder or project.home()
    path = folder / FILE
    settings = decode(Configuration, read_toml(path), str(path)) if path.is_file() else Configuration()
    for table in ("sources", "upstreams"):
        for name in getattr(settings, table):
            if name not in CLONES:
                raise MatrixError(
                    "no such source", where=f"{path}: {table}.{name}", got=name, fix=closest(name, CLONES)
                )
    fetched = {name: str(clone) for name in CLONES if (clone := clones.folder_of(name, environ)).is_dir()}
    paths = {name: str((folder / where).resolve()) for name, where in settings.sources.items()}
    variables = {name: str(Path(where).absolute()) for name in CLONES if (where := environ.get(variable(name)))}
    urls = {name: url for name in CLONES if (url := environ.get(f"{variable(name)}_URL"))}
    upstreams = {name: f"https://github.com/NVIDIA/{title}.git" for name, title in CLONES.items()}
    return replace(settings, sources=fetched | paths | variables, upstreams={**upstreams, **settings.upstreams, **urls})
