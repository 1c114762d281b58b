"""The tox environments of the catalog: one per `wheels` base, and one per line (minor version) of Transformer Engine.

torch2.4.0        the base torch-2.4.0; the night runs these
te19              the twin of the image that shipped Transformer Engine 1.9
te19-torch23      Transformer Engine 1.9 on another minor version of torch

In an image with the torch of a line, the line runs in place: on that torch, which is not installed again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from matrix.catalog.machine import PythonEnvironment
from matrix.catalog.model import Catalog, Container, ReaderBase, Wheels
from matrix.catalog.versions import minor, parse
from matrix.provision.nvidia import nvml

# Packages that Megatrix itself needs in a cell: pytest and the imports of matrix/. tomli is for Python 3.10,
# pytest-xdist for -n alone.
CELL_REQUIRES: Final = ("pytest>=8", "pytest-xdist>=3.6", "packaging>=24", "tomli>=2; python_version < '3.11'")
# Variables of every interpreter of a cell. PYTHONHASHSEED: a rerun must be deterministic. NO_VCS_VERSION: otherwise
# megatron-core >= 0.17 records the commit of a git repository around the overlay.
CELL_SETTINGS: Final = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "NO_VCS_VERSION": "1"}
# Names the folder into which tox writes the variables of the commands of each environment, for a run without tox.
VARIABLES: Final = "MEGATRIX_VARIABLES"


@dataclass(frozen=True)
class ToxEnvironment:
    """A tox environment. `te` is a line ("1.9"), "" for a base; `requirements` are for pip.

    For a line that runs in place, `interpreter` is the Python of the image, whose packages are visible, and `place` is
    the text of that fact in records.
    """

    name: str
    base: Wheels | ReaderBase
    te: str
    requirements: tuple[str, ...]
    description: str
    interpreter: Path | None = None
    place: str = ""


def base_name(base: str) -> str:
    """Return the tox environment of a base: torch-2.4.0 -> torch2.4.0."""
    return base.replace("-", "", 1)


def environments(catalog: Catalog) -> dict[str, ToxEnvironment]:
    """Return the environments by name."""
    return {environment.name: environment for environment in (*_bases(catalog), *_lines(catalog))}


def in_place(line: ToxEnvironment, image: PythonEnvironment) -> ToxEnvironment:
    """Return a line for the current image: in place if the image has its torch and no other TE.

    The packages of the image stay; pip adds the missing ones. An environment that is not a line is returned unchanged.
    """
    have = image.packages
    torch, te = have["torch"], have.get("transformer-engine", "")
    if not line.te or not isinstance(line.base, Wheels):
        return line
    if minor(torch) != minor(line.base.torch) or (te and minor(te) != line.te):
        has = f"torch {torch}" + (f" and Transformer Engine {te}" if te else "")
        return replace(line, description=f"{line.description}; not in place: this image has {has}")
    missing = [text for text in line.requirements if text in CELL_REQUIRES or _name(text) not in have]
    # numpy, a dependency of the added packages, must stay the image's. torch is not given to pip: an image's torch may
    # be built for other packages than it declares (Debian's for another sympy), and pip would install those.
    numpy = [f"numpy=={have['numpy']}"] if "numpy" in have else []
    torch_of_image = f"this image's own torch {torch}, in place of {line.base.id}"
    return replace(
        line,
        requirements=(*numpy, *missing),
        description=f"Transformer Engine {line.te} on {torch_of_image}",
        interpreter=image.path,
        place=torch_of_image,
    )


def te_lines(catalog: Catalog) -> Mapping[str, Container | None]:
    """Return each minor version of Transformer Engine with the newest image that ships it, None where none is known."""
    # Sorted by id, NeMo's images come before NGC's PyTorch, so the latter wins where it is known.
    shipped = {
        minor(image.te): image for image in sorted(catalog.containers, key=lambda container: container.id) if image.te
    }
    lines = sorted({minor(release.version) for release in catalog.transformer_engine}, key=parse)
    return {line: shipped.get(line) for line in lines}


def newest_of_its_day(catalog: Catalog, line: str) -> Wheels:
    """Return the base of the newest torch at the release of a Transformer Engine line, else of the oldest torch.

    It is for a line without a known image; pip installed this torch on the day of the release.
    """
    day = min(release.day for release in catalog.transformer_engine if minor(release.version) == line)
    out = {release.version for release in catalog.torch if "" < release.day <= day}
    bases = sorted(catalog.standard, key=lambda base: parse(base.torch))
    return next((base for base in reversed(bases) if base.torch in out), bases[0])


def _bases(catalog: Catalog) -> Iterator[ToxEnvironment]:
    for base in (*catalog.wheels, *catalog.by_python.values()):
        yield _environment(base_name(base.id), base, "", f"reproductions on {base.id}")
    for reader in catalog.readers:
        text = "checks that read both sides' API, and run nothing"
        yield ToxEnvironment(base_name(reader.id), reader, "", CELL_REQUIRES, text)


def _lines(catalog: Catalog) -> Iterator[ToxEnvironment]:
    for line, image in te_lines(catalog).items():
        name = f"te{line.replace('.', '')}"
        twin = catalog.twin(image) if image else None
        base = twin or newest_of_its_day(catalog, line)
        if image and twin:
            text = f"{base.id}, twin of {image.id} (which shipped it: {image.te_source})"
        else:
            text = f"{base.id}, the newest of its day ({image.id if image else 'no image'} is known to have shipped it)"
        yield _environment(name, base, line, f"Transformer Engine {line}: {text}")
        for torch_base in {minor(base.torch): base for base in reversed(catalog.standard)}.values():
            long = f"{name}-torch{minor(torch_base.torch).replace('.', '')}"
            yield _environment(long, torch_base, line, f"Transformer Engine {line} on {torch_base.id}")


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _environment(name: str, base: Wheels, te: str, description: str) -> ToxEnvironment:
    requirements = (f"torch=={base.torch}", *base.requires, *CELL_REQUIRES)
    return ToxEnvironment(name, base, te, requirements, description)


class Turn:
    """A lock between threads that its holder may take again, and that any thread may end for it."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._holder = ""

    def begin(self, name: str) -> None:
        """Wait for the turn; a party that has it keeps it."""
        if self._holder != name:
            self._free.acquire()
            self._holder = name

    def end(self, name: str) -> None:
        """Pass the turn on, if this party has it."""
        if self._holder == name:
            self._holder = ""
            self._free.release()


# What uv leaves out of every resolution: files of names, separated by spaces. tox-uv installs again when it changes.
EXCLUDE: Final = "UV_EXCLUDE"
# For environments that run on other machines than this one, such as the nodes of a cluster.
WITH_GPU_PACKAGES: Final[Mapping[str, str]] = {EXCLUDE: ""}


def left_out(packages: Sequence[str], file: Path, environ: Mapping[str, str], *, driver: bool) -> dict[str, str]:
    """Write the names to `file` and return the variable that makes uv leave them out.

    {} on a machine with a driver, where the variable is set, even to "", and where it can't express the path (a space):
    the packages are then installed.
    """
    if not packages or driver or EXCLUDE in environ or any(map(str.isspace, str(file))):
        return {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(packages), encoding="utf-8")
    return {EXCLUDE: str(file)}


def has_driver(proc: Path = Path("/proc")) -> bool:
    """Return whether this machine has NVIDIA's driver: its kernel module, or its library (WSL, some containers)."""
    return (proc / "driver" / "nvidia").exists() or not nvml.there()
