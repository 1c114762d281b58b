"""Let Transformer Engine check an installation of packages that do not belong together, and search its library.

Its Python is real; the metadata of its packages, and its libraries, which are empty files, are made here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

PACKAGE, LIBRARY = "transformer_engine", "libtransformer_engine.so"


def check(rank: Rank, *, core: str = "", pure: bool = True) -> str:
    """Return the version whose installation passes the check. Raises what Transformer Engine raises.

    `core`: the version of transformer-engine-cu12, that of transformer-engine by default. `pure`: the wheel is one of
    PyPI, without compiled code; a wheel that was built from source has some.
    """
    own = importlib.metadata.version("transformer-engine")
    describe(rank.workdir, PACKAGE, own, pure)
    describe(rank.workdir, f"{PACKAGE}_cu12", core or own, False)
    common_of(rank.workdir).sanity_checks_for_pypi_installation()
    return own


def find(rank: Rank, *, folders: tuple[str, ...]) -> str:
    """Return the name of the core library that Transformer Engine finds, which is in these folders of its package."""
    for folder in folders:
        place = mixed(rank.workdir) / folder
        place.mkdir(exist_ok=True)
        (place / LIBRARY).touch()
    return str(common_of(rank.workdir)._get_shared_object_file("core").name)


def describe(folder: Path, name: str, version: str, pure: bool) -> None:
    """Write the metadata of an installed wheel."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nRoot-Is-Purelib: {str(pure).lower()}\n", encoding="utf-8")
    (info / "RECORD").write_text("".join(f"{info.name}/{file},,\n" for file in ("METADATA", "WHEEL")), encoding="utf-8")


def mixed(folder: Path) -> Path:
    """Return a folder with links to the files of the package, made once."""
    target = folder / PACKAGE
    if not target.exists():
        spec: Any = importlib.util.find_spec(PACKAGE)
        target.mkdir()
        for file in Path(spec.origin).parent.iterdir():
            (target / file.name).symlink_to(file)
    return target


def common_of(folder: Path) -> Any:
    """Import the module with the checks from this folder. The switch of a build leaves out the check at import."""
    mixed(folder)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    return importlib.import_module(f"{PACKAGE}.common")
