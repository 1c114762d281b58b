"""`megatrix bisect ... -- COMMAND`: a command of the user's own, from its ends to the draft of a failure."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import places
from matrix.cli.main import main
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.folders import SITE, roots
from matrix.ground.catalog.loading import read_failures
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.stack import MCORE, TORCH
from matrix.ground.errors import ExitStatus, MatrixError
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised, RankEnd
from matrix.ground.verdicts.planned import Planned
from matrix.kit.command import METRIC, RUNS
from matrix.prove.authoring.entry import find_function
from matrix.prove.bisection import procedure
from matrix.prove.bisection.noise import LEAST
from matrix.prove.execution.slurm import client
from matrix.prove.planning.night import night
from matrix.prove.provision import host
from tests.schemas import items_of
from tests.unit import catalogs
from tests.unit.engines import HOST, FakeEngine, make_environment
from tests.unit.prove.bisection import repositories
from tests.unit.prove.execution.slurm.memory import Cluster

PLANNER = Frame("/x/default_planner.py", 7, "create_default_global_save_plan")
BROKEN = Outcome(
    OutcomeKind.RAISED,
    "rank 0 raised: AssertionError",
    0,
    exit_code=1,
    chain=(Raised("AssertionError", "", (PLANNER,)),),
)
STACKS = "--good torch-2.3.1/mcore-0.9.0/te-none/driver-none --bad torch-2.5.1/mcore-0.8.0/te-none/driver-none"


def known(environ: Mapping[str, str] = os.environ) -> Catalog:
    return catalogs.catalog(*(failure for root in roots(environ)[1:] for failure in read_failures(root)))


class OwnEngine(FakeEngine):
    """A fake engine that reads the catalog anew, like the processes of a real one."""

    def __init__(self, ends: Callable[[Planned], Outcome]) -> None:
        super().__init__(known(), ends=ends)
        self.workers = self.made = 0
        self.environ: Mapping[str, str] = {}

    def local(self, *_: Any, workers: int = 1, environ: Mapping[str, str], **__: Any) -> OwnEngine:
        """Replaces the local engine."""
        self.workers, self.environ = workers, environ
        self.made += 1
        return self

    def run(self, *arguments: Any) -> Any:
        self.known = known(self.environ)
        return super().run(*arguments)


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Run a bisection on an engine with these outcomes: exit status, standard output, standard error, engine."""
    monkeypatch.setattr(host, "look", lambda: HOST)
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("BASES_OF_TESTS", str(tmp_path / "bases"))
    monkeypatch.setattr(loading, "load", known)

    def bisect(line: str, ends: Callable[[Planned], Outcome]) -> tuple[int, str, str, OwnEngine]:
        made = OwnEngine(ends)
        monkeypatch.setattr(places, "LocalEngine", made.local)
        status = main(["bisect", *shlex.split(line)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err, made

    return bisect


def planner(item: Planned) -> Outcome:
    """Return what torch >= 2.4 with megatron-core < 0.9 does; megatron-core 0.7 fails with another error."""
    if str(item.cell.stack[MCORE]).startswith("0.7"):
        return Outcome(OutcomeKind.EXITED, "rank 0 left with status 3", 0, exit_code=3, evidence="no such option\n")
    broken = str(item.cell.stack[MCORE]) < "0.9" and str(item.cell.stack[TORCH]) >= "2.4"
    return BROKEN if broken else Outcome(OutcomeKind.PASSED, exit_code=0)


def test_both_culprits_of_a_command_are_named(run: Callable[..., Any]) -> None:
    status, out, err, _ = run(f"{STACKS} --json -- python save.py --x", planner)
    (answer,) = items_of(out, "bisect")

    assert (status, answer["answer"]) == (0, ["mcore", "torch"])
    assert answer["inside"]["torch"]["answer"] == "2.4.0"
    assert "First bad: PyTorch 2.4.0" in Path(answer["issue"]).read_text()
    assert 'exception = "AssertionError"' in err
    assert 'frame = "default_planner.py:create_default_global_save_plan"' in err


def test_one_engine_serves_ends_and_search(run: Callable[..., Any]) -> None:
    """A new one would look for its bases again, after the signature is learned."""
    assert run(f"{STACKS} -- python save.py", planner)[3].made == 1


def test_nodes_are_requested_for_a_command(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The site of a cluster looks up the limits of each case, so it has the catalog with the command's failure."""
    monkeypatch.setattr(client, "of", lambda *_: client.Commands(call=Cluster()))
    monkeypatch.setattr(places, "Slurm", lambda site, maker, **_: maker)
    status, _, err, _ = run(f"{STACKS} --engine slurm -- python save.py", planner)
    assert status == 0, err


def test_a_disk_that_fills_keeps_both_ends(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Full as the ends are stored with the signature that was learned: the same command runs neither again."""

    def full(*_: object) -> None:
        raise MatrixError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(procedure, "keep_judged", full)
        status, _, _, first = run(f"{STACKS} -- python save.py", planner)
    assert (status, len(first.ran)) == (2, 2)
    _, _, err, _ = run(f"{STACKS} -- python save.py", planner)
    assert ["[known]" in line for line in err.splitlines() if line[:5] in ("good ", "bad  ")][:4] == [True] * 4


def test_commits_that_change_a_name_go_first(run: Callable[..., Any], tmp_path: Path) -> None:
    """Of 40 commits, after the ends: the one that removes the argument of the error, its parent, and both again."""
    history = [
        (f"c{number}", [f"c{number - 1}"] * (number > 0), {"megatron/b.py": str(number), "megatron/a.py": name})
        for number, name in enumerate(["use_norm\n"] * 26 + ["norm\n"] * 14)
    ]
    clone = repositories.clone(tmp_path / "clone", history)
    listed = subprocess.check_output(["git", "-C", str(clone), "rev-list", "c39"], text=True).split()
    raised = Raised("TypeError", "__init__() got an unexpected keyword argument 'use_norm'")
    broken = replace(BROKEN, chain=(raised,))

    def ends(item: Planned) -> Outcome:
        return broken if listed.index(item.source.rpartition("@")[2]) <= 39 - 26 else PASSED

    line = f"--axis mcore --repo {clone} --torch 2.4.0 --good c10 --bad c39 --json -- x"
    _, out, _, engine = run(line, ends)
    (answer,) = items_of(out, "bisect")

    assert (answer["label"].split()[-1], len(engine.ran)) == ("c26", 6)


def test_the_draft_is_a_failure_of_the_catalog(run: Callable[..., Any]) -> None:
    """It has the signature, the function, rules of what was measured, and the cells that were, as picks."""
    draft = Path(items_of(run(f"{STACKS} --json -- python save.py", planner)[1], "bisect")[0]["draft"])
    assert read_failures(draft.parents[1]) == ()  # a draft
    draft.write_text(draft.read_text().replace("TODO", "known"))
    (found,) = read_failures(draft.parents[1])

    assert found.case[0].arguments["command"] == ["python", "save.py"]
    assert found.signature[0].exception == "AssertionError"
    assert found.affected
    assert found.works
    measured = {(pick.base, pick.versions[MCORE]) for pick in found.pick}
    assert measured >= {("torch-2.3.1", "0.9.0"), ("torch-2.4.0", "0.8.0"), ("torch-2.5.1", "0.8.0")}
    assert find_function(found.folder / "reproduction.py", found.case[0].run)
    known_with = catalogs.catalog(found)
    planned = night(known_with, lambda factors, keys, allowed: [], (Level.CPU,))
    assert {(item.cell.base, item.cell.stack[MCORE]) for item in planned} == measured
    assert {rule.bounds[TORCH].text for rule in found.affected if TORCH in rule.bounds} >= {">=2.4.0,<=2.5.1"}


def test_the_draft_and_the_issue_hold_no_secrets(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "save.py").write_text("API_KEY = 'hunter2-word'\n")
    (answer,) = items_of(run(f"{STACKS} --json -- python save.py --password hunter2-word", planner)[1], "bisect")
    draft, issue = Path(answer["draft"]).read_text(), Path(answer["issue"]).read_text()
    files = Path(answer["draft"]).parent / "files"
    assert "hunter2" not in draft + issue + (files / "save.py").read_text()
    assert 'command = ["python", "save.py", "--password", "[masked]"]' in draft
    assert "TODO: pass what is [masked] in variables" in draft


def test_a_repeated_run_ignores_cached_verdicts(run: Callable[..., Any], tmp_path: Path) -> None:
    """The verdict cache of `megatrix run` has the first run of a point: a second one from there would show nothing."""
    for torch in catalogs.TORCHES:
        make_environment(tmp_path / "bases" / f"torch-{torch}", {"torch": torch})
    line = "--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 {} -- x"
    ran = run(line.format(""), planner)[3].ran
    numbers = run(line.format("--metric 'time (.*)' --worse-than 5%"), seconds)[3].ran

    assert [ran.count(key) for key in dict.fromkeys(ran)] == [2, 1, 2]
    assert min(map(numbers.count, numbers)) >= LEAST


def seconds(item: Planned) -> Outcome:
    value = {METRIC: [1.1 if str(item.cell.stack[TORCH]) >= "2.4" else 1.0]}
    return Outcome(OutcomeKind.PASSED, exit_code=0, ranks=(RankEnd(0, 0, returned=True, value=value),))


def test_the_issue_needs_no_megatrix(run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the exception, the script and the packages of both sides; no frame, path or command of this project."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "save.py").write_text("save()\n")
    ours = Frame(f"{tmp_path}/matrix/kit/command.py", 9, "_run")
    chain = (*BROKEN.chain, Raised("CommandError", "the command left with status 1", (ours,)))

    def ends(item: Planned) -> Outcome:
        made = planner(item)
        return replace(made, chain=chain) if made is BROKEN else made

    (answer,) = items_of(run(f"{STACKS} --json -- python save.py", ends)[1], "bisect")
    text, draft = Path(answer["issue"]).read_text(), Path(answer["draft"]).read_text()

    assert text.startswith("**python save.py: AssertionError**")
    assert "| 2.4.0 (torch-2.4.0) | bad | `AssertionError` |" in text
    assert "bad: `python save.py` with " in text
    assert "`save.py`:\n\n```text\nsave()\n```\n" in text
    assert [word for word in ("megatrix", "CommandError", str(tmp_path)) if word in text] == []
    assert "guilty: mcore and torch; first fixed: Megatron-LM 0.9.0; first bad: PyTorch 2.4.0" in draft


def test_another_failure_is_a_skip(run: Callable[..., Any]) -> None:
    line = "--axis mcore --torch 2.4.0 --good 0.9.0 --bad 0.8.0 --json -- python save.py"
    assert items_of(run(line, planner)[1], "bisect")[0]["answer"] == "0.9.0"
    line = "--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 --json -- ./save"
    (answer,) = items_of(run(line, planner)[1], "bisect")
    assert answer["answer"] == "2.4.0"


def test_a_repeated_command_runs_nothing(run: Callable[..., Any]) -> None:
    """Both ends are stored with the learned signature; the entry keeps it."""
    line = f"{STACKS} -- python save.py"
    assert run(line, planner)[3].ran
    assert run(line, planner)[3].ran == []


def test_points_of_a_round_run_in_parallel(run: Callable[..., Any]) -> None:
    """Unless they are timed."""
    line = "--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 --at-once 3 {} -- x"
    assert run(line.format(""), planner)[3].workers == 3
    assert run(line.format("--metric 'time (.*)' --worse-than 5%"), seconds)[3].workers == 1


def test_only_sides_of_a_change_run_twice(run: Callable[..., Any]) -> None:
    ran = run("--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 -- x", planner)[3].ran
    assert {key.partition("/")[0]: ran.count(key) for key in ran} == {
        "torch-2.3.1": 2,
        "torch-2.4.0": 2,
        "torch-2.5.1": 1,
    }


def test_a_flaky_end_is_repeated(run: Callable[..., Any]) -> None:
    """The failing end is repeated until it fails; its runs count in the search."""
    seen: list[str] = []

    def flaky(item: Planned) -> Outcome:
        seen.append(item.key)
        passed = Outcome(OutcomeKind.PASSED, exit_code=0)
        return passed if seen.count(item.key) % 2 else planner(item)

    line = "--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 --shows 0.5 --json -- python save.py"
    (answer,) = items_of(run(line, flaky)[1], "bisect")

    assert answer["answer"] == "2.4.0"
    assert {probe["point"]: probe["runs"] for probe in answer["probes"]}["2.5.1"] == {"good": 1, "bad": 1}


def test_only_engines_get_the_commands_variables(run: Callable[..., Any], tmp_path: Path) -> None:
    """The environment of this process stays as it is."""
    before = dict(os.environ)
    environ = run(f"{STACKS} --deadline 30 -- python save.py", planner)[3].environ
    added = {name: value for name, value in environ.items() if before.get(name) != value}

    assert dict(os.environ) == before
    assert added.keys() == {SITE, "MEGATRIX_DEADLINE"}
    assert added["MEGATRIX_DEADLINE"] == "30"
    assert Path(added[SITE]).is_relative_to(tmp_path / "out" / "bisections")
    entries = [case for plan in (tmp_path / "out").rglob("plan.json") for case in json.loads(plan.read_text())]
    assert entries
    assert all(f"{SITE}={added[SITE]} megatrix run" in case["reproduce"] for case in entries)


PASSED = Outcome(OutcomeKind.PASSED, exit_code=0)
STACK = "rank 0:\n  File subprocess.py, line 1917 in _try_wait\n\nend of rank 0's log:\nstep 7\n"
HUNG = Outcome(OutcomeKind.HUNG, "rank 0 had not finished after 20 s", 0, evidence=STACK)
ABSENT = Outcome(OutcomeKind.UNAVAILABLE, "the command can't be started: x: not found in /usr/bin: x")


def no_terminal(text: str) -> Outcome:
    return Outcome(OutcomeKind.EXITED, "rank 0 left with status 1", 0, exit_code=1, evidence=f"{text}\n")


@pytest.mark.parametrize(
    ("good", "bad", "texts"),
    [
        (ABSENT, ABSENT, ["the good end can't run", "not found in /usr/bin"]),
        (PASSED, ABSENT, ["the bad end can't run", "not found in /usr/bin"]),
        (HUNG, HUNG, ["the good end is not good", "after 20 s\n            step 7\n", "--deadline SECONDS"]),
        (PASSED, HUNG, ["no signature can be learned", "-- timeout 60 COMMAND", "--deadline SECONDS"]),
        (PASSED, PASSED, ["the bad end is not bad", "got:      passed", "--shows P"]),
        (BROKEN, BROKEN, ["the good end is not good", "AssertionError", "nothing was searched"]),
        (BROKEN, PASSED, ["the good end is not good", "the ends may be swapped, or the command flaky"]),
        (no_terminal("top: failed tty get"), BROKEN, ["top: failed tty get", "script -qec 'COMMAND'"]),
        (no_terminal("the input device is not a TTY"), BROKEN, ["not a TTY", "script -qec 'COMMAND'"]),
        (no_terminal("EOFError: EOF when reading a line"), BROKEN, ["script -qec 'COMMAND'"]),
        (no_terminal("Error opening terminal: unknown."), BROKEN, ["script -qec 'COMMAND'"]),
    ],
)
def test_ends_not_as_stated_are_refused(
    run: Callable[..., Any], good: Outcome, bad: Outcome, texts: Sequence[str]
) -> None:
    """An absent command, one that hangs, one that needs a terminal, ends that both pass or both fail: status 2."""
    status, _, err, engine = run(f"{STACKS} -- x", lambda item: bad if item.cell.stack[MCORE] == "0.8.0" else good)

    assert status == ExitStatus.MISTAKE
    assert [text for text in texts if text not in err] == []
    assert "reproduce it: " in err
    assert len(engine.ran) == 2


@pytest.mark.parametrize(
    "line",
    [
        "--axis torch --good 2.4.0 --bad 2.4.0",
        "--good torch-2.4.0 --bad torch-2.4.0/mcore-none/te-none/driver-none",
        "--axis mcore --repo {clone} --torch 2.4.0 --good c3 --bad c3~0",
    ],
)
def test_equal_ends_run_nothing(run: Callable[..., Any], tmp_path: Path, line: str) -> None:
    """Also if two names stand for one point."""
    clone = repositories.chain(tmp_path / "c.git", 4)
    status, _, err, engine = run(f"{line.format(clone=clone)} -- x", planner)

    assert status == ExitStatus.MISTAKE
    assert "good and bad are the same point" in err
    assert engine.ran == []


def test_progress_shows_ends_as_they_behave(run: Callable[..., Any]) -> None:
    """Before a signature is known, any failure of the bad end is bad."""
    err = run("--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 -- x", planner)[2]
    assert [line[:11] for line in err.splitlines()[:2]] == ["good  2.3.1", "bad   2.5.1"]


@pytest.mark.parametrize("line", ["--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1", STACKS])
def test_a_flaky_command_has_no_answer(run: Callable[..., Any], line: str) -> None:
    """Both sides of a change run twice; the first bad release passes the second time."""
    seen: list[str] = []

    def flaky(item: Planned) -> Outcome:
        seen.append(item.key)
        return PASSED if item.cell.stack[TORCH] == "2.4.0" and seen.count(item.key) > 1 else planner(item)

    status, out, _, _ = run(f"{line} -- x", flaky)
    text = " ".join(out.split())

    assert status == ExitStatus.BAD
    assert "ambiguous: PyTorch 2.4.0 (torch-2.4.0): further runs contradict it" in text
    assert "2.4.0 (torch-2.4.0) is bad, and good when it runs again: the command is flaky; --shows P" in text


def test_a_given_signature_replaces_the_learned(run: Callable[..., Any], tmp_path: Path) -> None:
    given = tmp_path / "signature.toml"
    given.write_text('[[signature]]\nname = "mine"\nexit_code = 3\n')
    line = f"--axis mcore --torch 2.4.0 --good 0.9.0 --bad 0.7.0 --signature {given} --json -- python save.py"
    (answer,) = items_of(run(line, planner)[1], "bisect")

    assert {probe["signature"] for probe in answer["probes"]} == {None, "mine"}


def test_a_number_finds_the_commit(run: Callable[..., Any], tmp_path: Path) -> None:
    clone = repositories.chain(tmp_path / "c.git", 8)
    guilty = {f"c{number}" for number in range(5, 8)}
    names: dict[str, str] = {}

    def timed(item: Planned) -> Outcome:
        commit = item.source.rpartition("@")[2]
        if commit not in names:
            line = ["git", "-C", str(clone), "describe", "--tags", commit]
            names[commit] = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
        value = {METRIC: [1.1 if names[commit] in guilty else 1.0]}
        return Outcome(OutcomeKind.PASSED, exit_code=0, ranks=(RankEnd(0, 0, returned=True, value=value),))

    line = (
        f"--axis mcore --repo {clone} --torch 2.4.0 --good c0 --bad c7 --metric 'time ([\\d.]+)' --worse-than 5% --json"
    )
    status, out, err, engine = run(f"{line} -- python train.py", timed)
    (answer,) = items_of(out, "bisect")

    assert (status, names[answer["answer"]], answer["cost"]["ran"]) == (0, "c5", len(engine.ran))
    assert any("+10.0%" in note and "runs in all" in note for note in answer["notes"])
    assert "the metric is 1.1" in err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--axis torch -- x", "a command needs both ends"),
        ("dcp --good a --bad b -- x", "a command is bisected instead of a failure"),
        ("--good a --bad b --metric y -- x", "--worse-than"),
        ("--good a --bad b", "nothing to bisect"),
        ("dcp --good a --bad b --metric y", "are for a command"),
    ],
)
def test_options_that_do_not_fit_are_refused(run: Callable[..., Any], line: str, text: str) -> None:
    status, _, err, _ = run(line, planner)

    assert status == 2
    assert text in err


def number(*numbers: float | str) -> Outcome:
    return Outcome(OutcomeKind.PASSED, exit_code=0, ranks=(RankEnd(0, 0, returned=True, value={METRIC: [*numbers]}),))


def test_a_diverged_loss_is_bad(run: Callable[..., Any]) -> None:
    """The bad end has no level: a point is bad where its number is not finite."""
    line = "--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 --metric 'loss (.*)' --worse-than 5% --json -- x"
    status, out, err, _ = run(line, lambda item: number("nan") if item.cell.stack[TORCH] >= "2.4" else number(2.0))
    (answer,) = items_of(out, "bisect")

    assert (status, answer["answer"]) == (0, "2.4.0")
    assert "the number of the bad end is nan or inf" in err
    assert answer["probes"][-1]["why"] == "the metric is nan"


def test_a_good_end_that_diverges_is_refused(run: Callable[..., Any]) -> None:
    line = "--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 --metric 'loss (.*)' --worse-than 5% -- x"
    status, _, err, _ = run(line, lambda item: number("inf"))

    assert (status, "the good end is not good" in err, "the metric is inf" in err) == (2, True, True)


def test_answer_of_a_number_has_its_levels(run: Callable[..., Any]) -> None:
    """The runs of one record all count."""
    line = "--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 --metric 'loss (.*)' --worse-than 5% --json -- x"
    bad, good = number(*[1.1, 1.11] * 5), number(*[1.0, 1.01] * 5)
    _, out, _, engine = run(line, lambda item: bad if item.cell.stack[TORCH] >= "2.4" else good)
    (answer,) = items_of(out, "bisect")

    (note,) = [note for note in answer["notes"] if "step" in note]
    assert "the step is 1.005 -> 1.105 (+10.0%), the ends differ by 10.0%" in note
    assert "good 1.005 +- 0.0017 in 10 runs (spread 0.0053)" in note
    assert "30 runs in all; the number is what 'loss (.*)' finds" in note
    issue = Path(answer["issue"]).read_text()
    assert "the step is 1.005" in issue
    assert "loss" in issue
    assert len(engine.ran) == 3


def test_answer_of_a_flaky_failure_has_runs(run: Callable[..., Any]) -> None:
    """Fifteen passes in one record are enough."""
    passes = Outcome(OutcomeKind.PASSED, exit_code=0, ranks=(RankEnd(0, 0, returned=True, value={RUNS: 15}),))
    line = "--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 --shows 0.3 --json -- x"
    _, out, _, engine = run(line, lambda item: planner(item) if item.cell.stack[TORCH] >= "2.4" else passes)
    (answer,) = items_of(out, "bisect")

    assert answer["answer"] == "2.4.0"
    assert "where it is absent, " in answer["notes"][-1]
    assert "if one run shows it with 30%" in answer["notes"][-1]
    assert len(engine.ran) == 3


def test_another_failure_before_this_one_is_named(run: Callable[..., Any]) -> None:
    """megatron-core 0.8 fails with another error than 0.9: two borders, and one answer."""

    def two(item: Planned) -> Outcome:
        core = str(item.cell.stack[MCORE])
        other = Outcome(OutcomeKind.RAISED, "rank 0 raised", 0, exit_code=1, chain=(Raised("KeyError", "'other key'"),))
        return {"0.7.0": PASSED, "0.8.0": other}.get(core, BROKEN)

    status, out, _, _ = run("--axis mcore --torch 2.4.0 --good 0.7.0 --bad 0.9.0 --json -- x", two)
    (answer,) = items_of(out, "bisect")

    assert (status, answer["answer"], answer["kind"]) == (0, "0.9.0", "first-bad")
    assert any("another failure from 0.8.0 on, this one from 0.9.0 on" in note for note in answer["notes"])


def test_fixed_release_after_another_failure_is_named(run: Callable[..., Any]) -> None:
    """megatron-core 0.8 fails with another error than 0.7, and 0.9 passes: 0.9 is fixed, though 0.8 is not this."""

    def two(item: Planned) -> Outcome:
        core = str(item.cell.stack[MCORE])
        other = Outcome(OutcomeKind.RAISED, "rank 0 raised", 0, exit_code=1, chain=(Raised("KeyError", "'other key'"),))
        return {"0.7.0": BROKEN, "0.8.0": other}.get(core, PASSED)

    status, out, _, _ = run("--axis mcore --torch 2.4.0 --bad 0.7.0 --good 0.9.0 --json -- x", two)
    (answer,) = items_of(out, "bisect")

    assert (status, answer["answer"], answer["kind"]) == (0, "0.9.0", "first-fixed")
    assert any("another failure from 0.8.0 on, none from 0.9.0 on" in note for note in answer["notes"])


def test_a_failing_engine_stops_the_search(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A case without a result is no skip; the results before it are kept."""
    line = "--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 -- x"
    started: list[str] = []

    def stops(item: Planned) -> Outcome:
        started.append(item.key)
        return planner(item)

    original = FakeEngine.run

    def limited(self: FakeEngine, *arguments: Any) -> Any:
        self.limit = 0 if len(started) >= 2 else None
        self.status = 3
        return original(self, *arguments)

    monkeypatch.setattr(FakeEngine, "run", limited)
    status, _, err, _ = run(line, stops)
    assert status == 2
    assert "the engine ended without a result" in err
    assert "what pytest printed" in err
    monkeypatch.setattr(FakeEngine, "run", original)
    assert run(line, planner)[3].ran.count(started[0]) == 1  # the second run of both sides of the change alone


def test_pins_and_overrides_reach_every_point(run: Callable[..., Any]) -> None:
    line = "--axis torch --mcore 0.8.0 --good 2.3.1 --bad 2.5.1 --pin numpy==2.0.0 --override numpy --json -- x"
    _, out, _, engine = run(line, planner)
    (answer,) = items_of(out, "bisect")

    assert all("/numpy-2.0.0 " in key for key in engine.ran)
    assert read_toml(Path(answer["draft"]))["overrides"] == ["numpy"]


@pytest.mark.parametrize("pin", ["numpy", "torch==2.4.0", "numpy==x"])
def test_a_pin_is_of_a_package(run: Callable[..., Any], pin: str) -> None:
    status, _, err, _ = run(f"--axis torch --good 2.3.1 --bad 2.5.1 --pin {pin} -- x", planner)
    assert (status, "not a pin of a package" in err) == (2, True)
