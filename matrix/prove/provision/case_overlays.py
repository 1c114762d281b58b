"""The overlays of each case. For images and nodes they are created, and their list written, before the case runs.

Images and nodes have no network, git or uv; the overlays are content-addressed folders, mounted read-only.

Where Transformer Engine is built, which takes minutes, a process builds overlays beside the cases that need none of
them. The overlays' own locks make a case wait for the one that it needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

from matrix import PACKAGE
from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.distributions import OF_HOST, te_builds
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import HOST
from matrix.ground.catalog.regular_file import read_regular
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.provision.host import Configuration
from matrix.prove.provision.overlays import PRELOADED, Overlay, Overlays, OverlaySpec, identify, intact
from matrix.prove.provision.te_wheels import ReleaseBuild, release_build, toolkit
from matrix.read import package_source
from matrix.read.commands import STOP_S, python_code
from matrix.read.kernel import die_with_parent
from matrix.read.package_source import Source, SourceKind

CUDNN: Final = "nvidia/cudnn/lib/libcudnn_*.so.*"  # in its wheel, which torch requires


@dataclass(frozen=True)
class Provision:
    """The overlays of one case; `reason` is why they can't be provided, "" if they can."""

    overlays: tuple[Overlay, ...] = ()
    reason: str = ""


def overlay_specs(
    planned: Planned, environment: PythonEnvironment, configuration: Configuration, sms: Collection[str] = ()
) -> tuple[OverlaySpec, ...]:
    """Return the overlays of a case: megatron-core, Transformer Engine if the cell has it, further packages, OF_HOST.

    A package that the environment has at the right version needs no overlay; level contract reads recorded surfaces
    and needs none. At level gpu a release of Transformer Engine is built with its extension, for GPUs of the compute
    capabilities `sms`. Raises MatrixError for a clone that is not configured, and where a base can't build.
    """
    if planned.level is Level.CONTRACT:
        return ()
    own = replaced(planned)
    base = {name: environment.packages[name] for name in PRELOADED if name in environment.packages} | own
    required = ((MCORE, planned.source, planned.cell.stack[MCORE]), (TE, planned.te_source, planned.cell.stack[TE]))
    # A source of megatron-core has further packages (megatron.training); Transformer Engine is complete everywhere.
    laid = [
        package_source.parse(configuration.resolve(source) or version, package)
        for package, source, version in required
        if isinstance(version, str) and (version != environment.packages.get(package) or (source and package == MCORE))
    ]
    of_host = OF_HOST if laid and planned.cell.base == HOST else ()
    absent = ("==".join(pin) for pin in of_host if pin[0] not in environment.packages)
    laid += [package_source.pinned(package) for package in (*planned.packages, *absent)]
    compiled = _toolkit(planned, environment) if planned.compiled else ""
    builds = {source for source in laid if source.kind in (SourceKind.GIT, SourceKind.TREE) and source.layout.build}
    return tuple(
        OverlaySpec(
            (source,),
            environment.minor,
            {name: version for name, version in base.items() if not (name == source.package and name in own)},
            environment.path,
            planned.overrides,
            compiled if source in builds else "",
            _build(source, planned, environment, sms),
        )
        for source in laid
    )


def _toolkit(planned: Planned, environment: PythonEnvironment) -> str:
    """Return what the build of a compiled source depends on. Raises MatrixError where the base can't build it."""
    if environment.path is None and not environment.image:
        raise MatrixError(
            "--compile can't build in this image",
            got="an image on Slurm",
            expected="an image by podman or docker, or a base of wheels",
            fix="leave --engine slurm out",
        )
    return toolkit(environment.features, planned.cell.base, environment.image)


def _build(
    source: Source, planned: Planned, environment: PythonEnvironment, sms: Collection[str]
) -> ReleaseBuild | None:
    if planned.level is not Level.GPU or environment.image or source.kind is not SourceKind.PYPI:
        return None
    return release_build(source.revision, environment, sms) if source.package == TE else None


def replaced(planned: Planned) -> dict[str, str]:
    """Return the version of each package that a case lays over the one which ranks preload; torch is the base's.

    torch imports the base's triton, where it has one.
    """
    laid = (package_source.pinned(text) for text in planned.packages)
    return {source.package: source.revision for source in laid if source.package in (*PRELOADED[1:], "triton")}


def provide(
    cases: Iterable[Planned],
    environment: PythonEnvironment,
    configuration: Configuration,
    overlays: Overlays,
    wheels: Iterable[str] = (),
) -> dict[str, Provision]:
    """Return the provision of each case and of its writer by key; missing overlays are created.

    `wheels` ("NAME==VERSION") have provisions of their own, by these texts: what ranks load before torch.
    """
    requests: dict[str, Callable[[], tuple[OverlaySpec, ...]]] = {
        case.key: partial(overlay_specs, case, environment, configuration)
        for case in (part for planned in cases for part in (planned, planned.writer) if part)
    }
    requests |= {wheel: partial(preloaded_specs, wheel, environment) for wheel in wheels}
    provided = {}
    for key, specs in requests.items():
        try:
            provided[key] = Provision(tuple(map(overlays.provide, specs())))
        except MatrixError as error:
            provided[key] = Provision(reason=error.brief)
    return provided


def preloaded_specs(wheel: str, environment: PythonEnvironment) -> tuple[OverlaySpec, ...]:
    """Return the overlay of a wheel that ranks load before torch, and that is on no path of theirs."""
    return (OverlaySpec((package_source.pinned(wheel),), environment.minor, {}, environment.path),)


def cudnn_parts(planned: Planned) -> list[Path]:
    """Return the libraries of this Python's cuDNN that ranks load for a Transformer Engine that is linked to each."""
    linked = (planned.cell.stack.version(TE) or "0") in te_builds().extension.cudnn_parts
    return [part for folder in sys.path for part in sorted(Path(folder).glob(CUDNN))] if linked else []


def unlaid(
    cases: Iterable[Planned], environment: PythonEnvironment, configuration: Configuration, overlays: Overlays
) -> frozenset[str]:
    """Return the keys of the cases of which an overlay is still to be made, for which uv is needed."""

    @cache
    def is_made(digest: str) -> bool:
        return intact(overlays.root / digest) is not None

    def lacks(case: Planned) -> bool:
        return not all(is_made(overlay_digest(spec)) for spec in overlay_specs(case, environment, configuration))

    keys = set()
    for item in cases:
        with contextlib.suppress(MatrixError):  # the run states it
            if any(map(lacks, filter(None, (item, item.writer)))):
                keys.add(item.key)
    return frozenset(keys)


def overlay_digest(spec: OverlaySpec) -> str:
    """Return the digest of the overlay, existing or not."""
    return identify([package_source.inspect(source) for source in spec.sources], spec)[0]


def write(path: Path, provided: Mapping[str, Provision]) -> None:
    """Write the provisions of cases as JSON, by case key."""
    path.write_text(json.dumps(encode(provided)) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Provision]:
    """Return the provisions that `write` wrote. Raises MatrixError when the file can't be read."""
    try:
        return decode(dict[str, Provision], json.loads(read_regular(path)))
    except ValueError as error:
        raise MatrixError("the provisions of this image can't be read", where=str(path), got=error) from None


Builds = Mapping[str, tuple[OverlaySpec, ...]]  # overlays with a build of Transformer Engine, by the keys of the cases

LOG: Final = "builds.log"  # in the folder of the run
_CODE: Final = "from matrix.prove.provision.case_overlays import build_overlays; build_overlays()"


class OverlayBuilder:
    """The process that builds overlays, one after another, and ends with this one; its output is in `log`."""

    def __init__(self, specs: Collection[OverlaySpec], log: Path) -> None:
        searched = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                python_code(sys.executable, _CODE),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": searched},
                start_new_session=True,  # a group of its own, which is ended with its compilers
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError), self._process.stdin as specified:
            specified.write(json.dumps(encode(tuple(specs))).encode())

    def wait(self) -> int:
        """Return the exit status of the process after its end."""
        return self._process.wait()

    def stop(self) -> None:
        """End the process and the compilers that it started."""
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, number)
                self._process.wait(3 * STOP_S)  # it ends its own command first, which takes up to STOP_S
                return


def build_overlays() -> None:
    """Build the overlays that standard input specifies; what fails is reported by the cases that need it."""
    for spec in decode(tuple[OverlaySpec, ...], json.load(sys.stdin)):
        try:
            text = f"built {Overlays(default_root()).provide(spec).path}"
        except MatrixError as error:
            text = str(error)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
