"""The tox environments: one per base, and one per line of Transformer Engine."""

from __future__ import annotations

import re
import runpy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.catalog.machine import PythonEnvironment
from matrix.catalog.model import Catalog, Release
from matrix.cli import COMMANDS
from matrix.provision.nvidia import nvml
from matrix.provision.project import ROOT
from matrix.provision.tox_environments import (
    CELL_REQUIRES,
    EXCLUDE,
    WITH_GPU_PACKAGES,
    ToxEnvironment,
    Turn,
    base_name,
    environments,
    has_driver,
    in_place,
    left_out,
    te_lines,
)
from tests.unit.catalogs import catalog, image, real, releases, wheels

SMALL = catalog(
    wheels=tuple(wheels(torch, requires=("numpy<2",)) for torch in ("2.3.1", "2.4.0", "2.4.1")),
    transformer_engine=releases(["1.8", "1.9", "1.10", "2.0"]),
    containers=(
        image("ngc-24.05", "2.4.0a0+07cecf4168", "1.8"),
        image("ngc-24.07", "2.4.0a0+3bcc3cddb5", "1.8.0+37280ec"),
        image("ngc-24.08", "2.9.0a0+872d972e41", "1.9"),
    ),
)


@pytest.mark.parametrize(
    ("name", "base", "te"),
    [
        ("torch2.4.0", "torch-2.4.0", ""),
        ("te19", "torch-2.5.1", "1.9"),
        ("te18", "torch-2.4.0", "1.8"),
        ("te19-torch23", "torch-2.3.1", "1.9"),
        ("te19-torch24", "torch-2.4.0", "1.9"),
        ("te110-torch213", "torch-2.13.0", "1.10"),
    ],
)
def test_the_documented_names_resolve(name: str, base: str, te: str) -> None:
    made = environments(real())[name]
    assert (name, base, te) == (made.name, made.base.id, made.te)


def test_every_base_has_an_environment() -> None:
    names = [name for name, one in environments(SMALL).items() if not one.te]
    assert [base_name(base.id) for base in SMALL.wheels] == names == ["torch2.3.1", "torch2.4.0", "torch2.4.1"]


def test_a_line_is_the_twin_of_its_image() -> None:
    made = environments(SMALL)
    assert made["te18"].base.id == "torch-2.4.0"
    assert "twin of ngc-24.07 (which shipped it: inferred)" in made["te18"].description


def test_a_line_exists_for_each_torch_minor() -> None:
    made = environments(SMALL)
    bases = {name: getattr(made[name].base, "torch", "") for name in made if name.startswith("te20-")}
    assert bases == {"te20-torch23": "2.3.1", "te20-torch24": "2.4.0"}


def test_lines_are_sorted_by_version() -> None:
    assert list(te_lines(SMALL)) == ["1.8", "1.9", "1.10", "2.0"]


def test_an_environment_has_its_torch_and_requirements() -> None:
    assert ("torch==2.4.0", "numpy<2", *CELL_REQUIRES) == environments(SMALL)["torch2.4.0"].requirements


DAYS = {"2.3.1": "2024-06-05", "2.4.0": "2024-07-24", "2.4.1": "2024-09-04"}


def dated(line: str, day: str) -> Catalog:
    """Return SMALL with this line released on that day."""
    torch = tuple(Release(version, pypi=out) for version, out in DAYS.items())  # type: ignore[arg-type]  # built
    engine = Release(f"{line}.0", pypi=(f"{line}.0 {day}",))  # type: ignore[arg-type]  # built
    return replace(SMALL, torch=torch, transformer_engine=(engine,))


@pytest.mark.parametrize(
    ("day", "torch"),
    [("2024-09-10", "2.4.1"), ("2024-09-04", "2.4.1"), ("2024-09-03", "2.4.0"), ("2024-01-01", "2.3.1")],
)
def test_without_image_a_line_has_contemporary_torch(day: str, torch: str) -> None:
    made = environments(dated("1.10", day))["te110"]
    assert made.base.id == f"torch-{torch}"
    assert "the newest of its day (no image is known to have shipped it)" in made.description


def test_without_twin_a_line_has_contemporary_torch() -> None:
    """Its image has a torch that no base stands for."""
    made = environments(dated("1.9", "2024-08-15"))["te19"]
    assert made.base.id == "torch-2.4.0"
    assert "ngc-24.08 is known to have shipped it" in made.description


def test_every_line_of_the_catalog_has_an_environment() -> None:
    names = {f"te{line.replace('.', '')}" for line in te_lines(real())}
    assert {"te18", "te25", "te220"} <= names <= set(environments(real()))


def test_a_nemo_image_counts_without_another() -> None:
    shipped = te_lines(real())
    assert {line: image.id for line in ("2.14", "2.16") if (image := shipped[line])} == {
        "2.14": "ngc-26.04",
        "2.16": "nemo-26.06",
    }


LINE = ToxEnvironment(
    "te19", wheels("2.5.1"), "1.9", ("torch==2.5.1", "numpy<2", "zarr<3", "einops", *CELL_REQUIRES), "the twin"
)


def image_with(**packages: str) -> PythonEnvironment:
    """Return an image with these packages."""
    have = {name.replace("_", "-"): version for name, version in packages.items()}
    return PythonEnvironment("3.13.5", have, path=Path("/usr/bin/python3"))


def test_a_line_runs_in_place_on_its_torch() -> None:
    """pip gets the missing packages, pytest and a pin of the image's numpy, but not torch."""
    made = in_place(LINE, image_with(torch="2.5.0a0+872d972e41", numpy="2.2.4", einops="0.8", pytest="7.4"))
    assert made.interpreter == Path("/usr/bin/python3")
    assert made.requirements == ("numpy==2.2.4", "zarr<3", *CELL_REQUIRES)
    assert made.place == "this image's own torch 2.5.0a0+872d972e41, in place of torch-2.5.1"
    assert made.place in made.description


@pytest.mark.parametrize(("te", "there"), [("1.9.0+a1b2c3d", True), ("1.9", True), ("1.8.0+37280ec", False)])
def test_another_te_prevents_running_in_place(te: str, there: bool) -> None:
    made = in_place(LINE, image_with(torch="2.5.0", transformer_engine=te))
    assert there is (made.interpreter is not None)


def test_in_another_image_a_line_is_the_twin() -> None:
    made = in_place(LINE, image_with(torch="2.6.0+debian", transformer_engine="1.8.0"))
    assert (made.interpreter, made.requirements) == (None, LINE.requirements)
    assert made.description == "the twin; not in place: this image has torch 2.6.0+debian and Transformer Engine 1.8.0"


@pytest.mark.parametrize("name", ["torch2.4.0", "notorch"])
def test_a_base_is_never_in_place(name: str) -> None:
    """A night requires exactly these releases."""
    one = environments(real())[name]
    assert in_place(one, image_with(torch="2.4.0")) is one


def test_tox_on_an_old_python_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.9, which RHEL 9 has: the project's own modules do not import there."""
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(SystemExit, match=r"needs Python 3\.10 or later; this tox runs on 3\.9\.18\n  fix: .*uvx"):
        runpy.run_path(str(ROOT / "toxfile.py"))


def test_commands_of_tox_exist() -> None:
    named = re.findall(r"python -m matrix (\w+)", (ROOT / "tox.ini").read_text(encoding="utf-8"))
    assert named
    assert {*named} <= COMMANDS.keys()


NAMES = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.tuples(st.sampled_from(["begin", "end"]), NAMES)))
def test_only_the_holder_ends_its_turn(steps: list[tuple[str, str]]) -> None:
    """Ends without a turn, and several of them, change nothing: tox reports the end of an environment twice."""
    turn, holder = Turn(), ""
    for step, name in steps:
        if step == "end":
            turn.end(name)
            holder = "" if holder == name else holder
        elif holder in ("", name):  # another one would wait
            turn.begin(name)
            holder = name
    if holder:
        turn.end(holder)
    turn.begin("next")


def test_one_party_at_a_time_works() -> None:
    turn, inside, most = Turn(), list[str](), list[int]()
    start = threading.Barrier(4)

    def work(name: str) -> None:
        start.wait()
        for _ in range(200):
            turn.begin(name)
            inside.append(name)
            most.append(len(inside))
            inside.remove(name)
            turn.end(name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    assert (max(most), len(most)) == (1, 800)


def test_a_driver_keeps_the_packages(tmp_path: Path) -> None:
    file = tmp_path / "work" / "names.txt"
    assert left_out(["triton"], file, {}, driver=True) == {}
    assert not file.exists()
    assert left_out(["triton", "nvidia-cusolver"], file, {}, driver=False) == {EXCLUDE: str(file)}
    assert file.read_text(encoding="utf-8").split() == ["triton", "nvidia-cusolver"]


@pytest.mark.parametrize("environ", [{EXCLUDE: ""}, {EXCLUDE: "/my/own.txt"}, {**WITH_GPU_PACKAGES}])
def test_an_earlier_choice_stays(tmp_path: Path, environ: dict[str, str]) -> None:
    """The user's, or that of a run on a cluster."""
    assert left_out(["triton"], tmp_path / "names.txt", environ, driver=False) == {}


def test_nothing_is_left_out_below_spaces(tmp_path: Path) -> None:
    """uv 0.13 reads the variable as several files, and has no way to write a space."""
    assert left_out(["triton"], tmp_path / "my project" / "names.txt", {}, driver=False) == {}
    assert left_out([], tmp_path / "names.txt", {}, driver=False) == {}


def test_driver_is_a_module_or_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WSL and some containers have the library alone."""
    monkeypatch.setattr(nvml, "there", lambda: "libnvidia-ml.so.1: no such file")
    assert not has_driver(tmp_path)
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    assert has_driver(tmp_path)
    monkeypatch.setattr(nvml, "there", lambda: "")
    assert has_driver(tmp_path / "empty")
