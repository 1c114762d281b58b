"""What a site tells the project: where its clones of upstream repositories are.

`megatrix.toml` in the project's folder, or the environment, which wins:

    [sources]                                       MEGATRIX_MEGATRON_LM=/clones/Megatron-LM
    megatron-lm = "/clones/Megatron-LM"             MEGATRIX_TRANSFORMER_ENGINE=/clones/TransformerEngine
    transformer-engine = "../TransformerEngine"

A relative path counts from the project's folder. Clones are only read; bare ones will do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from matrix.catalog.schema import build, read_toml
from matrix.errors import MatrixError, closest
from matrix.provision.project import ROOT

FILE: Final = "megatrix.toml"
CLONES: Final = {"megatron-lm": "Megatron-LM", "transformer-engine": "TransformerEngine"}


@dataclass(frozen=True)
class Configuration:
    """A site's settings; `sources` maps "megatron-lm" and "transformer-engine" to clones."""

    sources: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, source: str) -> str:
        """Return "CLONE-NAME@REVISION" as "PATH@REVISION"; any other source as it is.

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
            )
        return f"{self.sources[name]}@{revision}"


def variable(name: str) -> str:
    """Return the environment variable of a clone."""
    return f"MEGATRIX_{name.upper().replace('-', '_')}"


def load(environ: Mapping[str, str] = os.environ, folder: Path = ROOT) -> Configuration:
    """Read the configuration. Raises MatrixError for a wrong key or type."""
    path = folder / FILE
    told = build(Configuration, read_toml(path), str(path)) if path.is_file() else Configuration()
    for name in told.sources:
        if name not in CLONES:
            raise MatrixError("no such source", where=f"{path}: sources.{name}", got=name, fix=closest(name, CLONES))
    paths = {name: str((folder / where).resolve()) for name, where in told.sources.items()}
    return Configuration(paths | {name: environ[variable(name)] for name in CLONES if environ.get(variable(name))})
