"""The tox environments: one per base, and one per line."""

from __future__ import annotations

import re
import runpy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.cli import COMMANDS
from matrix.prove.planning.catalog_lines import lines
from matrix.prove.provision.project import ROOT
from matrix.prove.provision.tox_environments import (
    CELL_REQUIRES,
    EXCLUDE,
    WITH_GPU_PACKAGES,
    Turn,
    environments,
    has_driver,
    left_out,
    requirements,
)
from matrix.read.machine.nvidia import nvml
from tests.unit.catalogs import catalog, reader, real, wheels

SMALL = catalog(wheels=tuple(wheels(torch, requires=("numpy<2",)) for torch in ("2.3.1", "2.4.0")), readers=(reader(),))


def test_every_base_has_an_environment() -> None:
    made = {name: requirements(base) for name, base in environments(SMALL).items()}
    assert made == {
        "torch-2.3.1": ("torch==2.3.1", "numpy<2", *CELL_REQUIRES),
        "torch-2.4.0": ("torch==2.4.0", "numpy<2", *CELL_REQUIRES),
        "no-torch": CELL_REQUIRES,
    }


def test_a_line_and_its_base_have_two_names() -> None:
    """What people type runs `megatrix run`, which makes the environments of bases with tox."""
    assert not {*environments(real())} & {*lines(real())}


def test_lines_start_a_run() -> None:
    settings = ConfigParser(interpolation=None)
    settings.read(ROOT / "tox.ini", encoding="utf-8")
    assert settings["line"]["commands"] == "python -m matrix run --line {env_name} {posargs}"


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
