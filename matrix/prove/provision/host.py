"""This machine as a site of cases: what a plan may use of it, and the settings of the site.

The settings are its clones of upstream repositories, their URLs, and whether interpreters are downloaded. They come
from `megatrix.toml` in the checkout, or without one in the current folder; the environment overrides it:

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
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from matrix.ground.cases.machine_requirements import BaseOffer, unmet
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.failure import GIB, Level
from matrix.ground.catalog.folders import SETTINGS
from matrix.ground.catalog.machine import Cuda, Machine
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.versions import NONE
from matrix.ground.errors import MatrixError, closest
from matrix.ground.verdicts.planned import Lack, Planned
from matrix.ground.verdicts.record import MACHINE
from matrix.prove.provision import clones, project
from matrix.read.machine import hardware, installed

CLONES: Final = {"megatron-lm": "Megatron-LM", "transformer-engine": "TransformerEngine"}


@dataclass(frozen=True)
class InterpreterSettings:
    """`download`: whether uv may download a Python that this machine lacks."""

    download: bool = True


@dataclass(frozen=True)
class Configuration:
    """A site's settings; `sources` maps "megatron-lm" and "transformer-engine" to clones, `upstreams` to URLs.

    `failures` are folders of the site's own failures, which matrix.ground.catalog.folders reads.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    upstreams: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
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
                expected=f"{variable(name)}=PATH, or {name} under [sources] in {SETTINGS}",
                fix="megatrix sources fetch",
            )
        return f"{self.sources[name]}@{revision}"


def variable(name: str) -> str:
    """Return the environment variable of a clone."""
    return f"MEGATRIX_{name.upper().replace('-', '_')}"


def load_configuration(environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> Configuration:
    """Read the configuration. Raises MatrixError for a wrong key or type."""
    folder = folder or project.home()
    path = folder / SETTINGS
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


VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class ExecutionSite(Protocol):
    """Where cases run: this machine, or a cluster (matrix.prove.execution.slurm)."""

    def lack(self, catalog: Catalog, item: Planned, offer: BaseOffer) -> Lack | None:
        """Return what a case requires and its base or the site does not offer, None where it can run."""

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on; part of the cache key."""


@dataclass(frozen=True)
class LocalSite:
    """This machine, where cases run. `user_mode` queries the user-mode driver; `machine` is known without it."""

    machine: Machine
    user_mode: Callable[[], Cuda] = field(default=hardware.user_mode, compare=False)

    @property
    def text(self) -> str:
        """Return the GPUs, the driver, the cores and the memory of this machine: what records call it."""
        gpus = Counter(
            f"{gpu.name}, SM {gpu.sm}{', multicast' * bool(gpu.multicast)}" for gpu in self.offers(Level.GPU).gpus or ()
        )
        cards = ", ".join(f"{count} x {kind}" for kind, count in gpus.items()) or "no GPU"
        memory = f", {self.machine.memory / GIB:.0f} GiB" if self.machine.memory else ""
        return f"{cards}; driver {self.machine.driver or 'unknown'}; {os.cpu_count()} cores{memory}"

    def lack(self, catalog: Catalog, item: Planned, offer: BaseOffer) -> Lack | None:
        """Return what a case requires and its base or this machine does not offer, None where it can run."""
        return unmet(catalog, item, offer, self.offers(item.level))

    def facts(self, level: Level) -> dict[str, str]:
        """Return what a record at `level` states of the machine."""
        return {MACHINE: self.text} if level is Level.GPU else {}

    def offers(self, level: Level) -> Machine:
        """Return what this machine offers; its GPUs, which takes seconds on the first call, at level gpu only."""
        machine = self.machine
        if level is not Level.GPU:
            return machine
        if not machine.listed and machine.driver == NONE:
            return replace(machine, cuda=Cuda(problem=machine.nvml.problem if machine.nvml else ""))
        built, sources = tuple(installed.compiled()), installed.sources()
        machine = replace(machine, nvcc=machine.nvcc or installed.nvcc_version(), compiled=built, sources=sources)
        cuda = self.user_mode()
        selected = os.environ.get(VISIBLE)
        if not cuda.problem and selected is not None and len(cuda.gpus) < (machine.listed or 0):
            hidden = f"{VISIBLE} is {selected!r}; the kernel driver lists {machine.listed}"
            cuda = replace(cuda, problem=hidden)
        return replace(machine, cuda=cuda)

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on; part of the cache key."""
        gpus = {"gpus": self.machine.listed, "driver": self.machine.driver} if level is Level.GPU else {}
        return {"machine": self.machine.architecture, **gpus}


def look() -> LocalSite:
    """Return this machine."""
    return LocalSite(hardware.look())
