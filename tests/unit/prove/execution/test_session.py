"""The session of one pytest process: its cases, its supervisor and its journal."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.schema import Identifier
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.record import Verdict
from matrix.prove.execution import installation, session
from matrix.prove.execution.case_context import Options
from matrix.prove.execution.relay import Receiver
from matrix.prove.execution.session import Session
from matrix.prove.planning.statistics import DEFAULT_S
from matrix.prove.provision.case_overlays import Provision
from matrix.prove.store import journal, stored_run
from matrix.prove.store.journal import Journal
from tests.unit.catalogs import case, catalog, failure, plan_entry
from tests.unit.prove.execution.sessions import CASE, ON_GPUS, of_host, on_gpus, provided
from tests.unit.show.samples import changed, record


def test_session_plans_the_cases_of_its_base(folder: Path) -> None:
    assert Session(Options("torch-2.4.0", folder), folder).planned == [CASE]


def test_session_skips_cases_with_a_result(folder: Path) -> None:
    with Journal.new(folder) as journal:
        journal.result(changed(record(), failure="break"))
    assert Session(Options("torch-2.4.0", folder), folder).planned == []


def test_session_without_a_run_writes_its_plan(folder: Path) -> None:
    current = Session(Options("torch-2.4.0", select="mcore==0.8.0"), folder)
    assert current.planned == [replace(CASE, seconds=DEFAULT_S[Level.CPU])]
    current.journal.close()
    assert [plan_entry(planned) for planned in current.planned] == stored_run.plan(current.run_folder)


def test_own_run_ends_with_verdicts_and_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes no page itself: cells lack the libraries of the pages."""
    monkeypatch.setenv("MEGATRIX_COMMAND", "tox run -e megatrix --")
    current = Session(Options("torch-2.4.0"), folder)
    assert current.summary == []
    for verdict in (Verdict.HOLDS, Verdict.VANISHED, Verdict.HOLDS):
        current.journal.result(record(verdict))
    current.close()
    run = current.run_folder.name
    assert current.summary == [
        f"megatrix: run {run}: 2 holds, 1 vanished",
        f"megatrix: page: {folder}/desk/index.html, written by `tox run -e megatrix -- report {run} --out={folder}`",
    ]


def test_part_of_a_run_has_no_summary(folder: Path) -> None:
    current = Session(Options("torch-2.4.0", folder), folder)
    current.records.append(record())
    assert current.summary == []


def test_interpreter_without_asserts_raises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks inherit -O, and upstream's AssertionError, which a failure is, would not be raised."""
    monkeypatch.setattr(sys, "flags", SimpleNamespace(optimize=1))
    with pytest.raises(MatrixError, match="without asserts"):
        Session(Options("torch-2.4.0"), folder)


def test_contract_case_needs_no_mpirun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    one = replace(CASE, launcher="mpirun", level=Level.CONTRACT)
    current = provided(folder, Provision(), one.key)
    monkeypatch.setattr(session, "read_case", lambda *_: Outcome(OutcomeKind.PASSED))
    assert current.reproduction(one).run().outcome.kind is OutcomeKind.PASSED
    current.close()


def test_session_with_keys_runs_only_those(folder: Path) -> None:
    """An array task has a part of its base's cases."""
    assert Session(Options("torch-2.4.0", folder, keys=frozenset({CASE.key})), folder).planned == [CASE]
    assert Session(Options("torch-2.4.0", folder, keys=frozenset({"another"})), folder).planned == []


@pytest.mark.parametrize("preload", [True, False])
def test_torch_is_preloaded_for_cases_that_need_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, preload: bool
) -> None:
    known = catalog(failure(case=(replace(case(), preload=preload),)))
    monkeypatch.setattr(installation, "load", lambda: known)
    monkeypatch.setattr(session, "Supervisor", lambda preload, **_: preload)
    assert ("torch" in Session(Options("torch-2.4.0", folder), folder).supervisor) is preload  # type: ignore[operator]


@pytest.mark.parametrize(("installed", "preloaded"), [({}, True), ({"triton": "3.4.0"}, False)])
def test_laid_triton_precedes_that_of_the_base(
    folder: Path, monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], preloaded: bool
) -> None:
    """torch imports the base's, where it has one: the case would run with that."""
    monkeypatch.setattr(session, "Supervisor", lambda preload, **_: preload)
    current = Session(Options("torch-2.4.0", folder), folder)
    environment = current.installation.environment
    packages = {name: text for name, text in environment.packages.items() if name != "triton"} | installed
    current.installation = replace(current.installation, environment=replace(environment, packages=packages))
    current.planned = [replace(CASE, packages=("triton==3.5.1",))]
    assert ("torch" in current.supervisor) is preloaded  # type: ignore[operator]


def test_secrets_of_the_run_reach_ranks_and_journal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of variables that tox drops, so this process's environment has none of them."""
    monkeypatch.setattr(session, "Supervisor", lambda preload, secrets, **_: secrets)
    with Receiver(lambda _: None, secrets=("hunter2-hunter2",)) as receiver:
        current = Session(Options("torch-2.4.0", folder, relay=receiver.address), folder)
        assert "hunter2-hunter2" in current.secrets
        assert current.supervisor == current.secrets  # type: ignore[comparison-overlap]
        current.journal.result(replace(record(), notes=("a note with hunter2-hunter2",)))
        current.journal.close()
    ((stored, *_),) = [list(journal.read(folder).results.values())]
    assert stored.notes == ("a note with [masked]",)


@pytest.mark.usefixtures("no_overlays")
def test_gpu_case_sees_its_gpus_by_uuid(folder: Path) -> None:
    current, jobs = on_gpus(folder, 8, place="node n535: driver535")
    made = current.reproduction(ON_GPUS).run()
    current.close()
    assert [(job.env, job.backend) for job in jobs] == [({"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}, "nccl")]
    assert made.notes[-1] == "ran on node n535: driver535"


def test_first_cases_are_those_that_can_run(folder: Path) -> None:
    """A case that lacks something here is not the first of its entry: the next one is."""
    current, _ = on_gpus(folder, 2)
    broken = replace(ON_GPUS, expectation=Expectation.BROKEN)
    able, works = replace(broken, case="able"), replace(broken, case="works", expectation=Expectation.WORKS)
    current.planned = [replace(broken, gpus=8), able, works]
    (entry,) = current.installation.catalog.failures
    known = replace(entry, case=tuple(replace(case(), name=Identifier(name)) for name in (CASE.case, "able", "works")))
    current.installation = replace(current.installation, catalog=catalog(known))
    assert [current.ranks_of_value[item.key] for item in current.planned] == [2, 1, 1]


@pytest.mark.usefixtures("no_overlays")
def test_driver_is_queried_for_gpu_cases_only(folder: Path) -> None:
    current, _ = on_gpus(folder, 2)
    machine = current.installation.host
    of_host(current, replace(machine, user_mode=lambda: pytest.fail("the user-mode driver was queried")))
    current.reproduction(CASE)
