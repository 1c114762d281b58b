"""Bisections with real cells: the torch that introduced the assertion, the commits of both halves of its fix, and a
command of one's own, which is interrupted.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.schema import read_toml
from tests.founding import SAVE
from tests.real.conftest import COMMAND_S, ROOT, remaining
from tests.real.kills import GONE_S
from tests.real.test_cells import coordinator_by_name, tree_of
from tests.schemas import items_of, records_of
from tests.unit.prove.bisection import repositories

STRATEGIES = "dist_checkpointing/strategies"


def bisect(out: Path, *arguments: str) -> dict[str, Any]:
    """Return the JSON output of `megatrix bisect`."""
    done = subprocess.run(
        [sys.executable, "-m", "matrix", "bisect", SAVE, "--json", "--out", str(out), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return items_of(done.stdout, "bisect")[0]


def test_first_bad_torch_is_found_and_stored(tmp_path: Path) -> None:
    """With megatron-core 0.8.0; a second bisection runs nothing."""
    line = ("--axis", "torch", "--mcore", "0.8.0", "--good", "2.3.1", "--bad", "2.4.1", "--at-once", "2")
    first, again = bisect(tmp_path, *line), bisect(tmp_path, *line)

    assert (first["answer"], first["kind"], first["confidence"]) == ("2.4.0", "first-bad", 1.0)
    assert {probe["signature"] for probe in first["probes"] if probe["seen"] == "bad"} == {"duplicate-fqn"}
    assert (again["answer"], first["cost"]["ran"], again["cost"]["ran"]) == ("2.4.0", 3, 0)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a Megatron-LM of four commits: 0.8.0, an unrelated one, the fix of TP=2, the fix of PP=2."""
    folder = tmp_path_factory.mktemp("clone")
    tree_of("0.8.0", folder, f"{STRATEGIES}/torch.py", lambda text: f"{text}\n# one\n")

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)

    def commit(name: str, file: str, edit: Callable[[str], str]) -> None:
        path = folder / "megatron" / "core" / STRATEGIES / file
        path.write_text(edit(path.read_text()))
        git("add", "-A")
        git("commit", "-q", "-m", name)
        git("tag", name)

    git("init", "-q")
    commit("release", "torch.py", lambda text: text)
    commit("other", "torch.py", lambda text: f"{text}# two\n")
    commit("by-name", "state_dict_saver.py", coordinator_by_name)
    commit("helper", "torch.py", lambda text: text.replace("self._add_non_coordinator_iobytes_request(plan)", "pass"))
    return folder


@pytest.mark.parametrize(("case", "fix"), [("tp2", "by-name"), ("pp2", "helper")])
def test_bisection_finds_the_fix_of_each_layout(clone: Path, tmp_path: Path, case: str, fix: str) -> None:
    """Each commit of the clone is an overlay over torch 2.4.0; the work tree of the clone is not changed."""
    report = bisect(
        tmp_path, "--axis", "mcore", "--repo", str(clone), "--bad", "release", "--good", "helper", "--torch", "2.4.0",
        "--case", case, "--at-once", "2",
    )  # fmt: skip

    assert (report["kind"], report["label"].split()[-1]) == ("first-fixed", fix)


# It reads the commit's file without an import of megatron: no probe needs torch.
LIMIT = """
import os, sys
(file,) = [path for one in sys.path if os.path.exists(path := os.path.join(one, "megatron", "a.py"))]
assert open(file).read() < "c22", "too new"
"""
QUESTION = ("--axis", "mcore", "--torch", "2.4.0", "--good", "c10", "--bad", "c29", "--at-once", "2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_command_loses_no_probe(tmp_path: Path, number: int) -> None:
    """Ctrl-C, or kill -9 of the bisection alone: its processes end, and the same command runs only what is left."""
    clone = repositories.chain(tmp_path / "c.git", 30)
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as temporary:
        line = [sys.executable, "-m", "matrix", "bisect", "--repo", str(clone), *QUESTION, "--json"]
        line += ["--out", str(tmp_path / "out"), "--", "python", "-c", LIMIT]
        mark = f"TMPDIR={temporary}"
        environ = {**os.environ, "TMPDIR": temporary}

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(
                line, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip

        process = start()
        assert process.stderr is not None
        shown = [label_of(process.stderr.readline()) for _ in range(5)]
        process.send_signal(number)
        shown += [label_of(text) for text in process.communicate(timeout=60)[1].splitlines()]
        assert process.returncode == (130 if number == signal.SIGINT else -number)
        assert remaining(mark, GONE_S) == {}
        out, err = start().communicate(timeout=COMMAND_S)
        assert remaining(mark, GONE_S) == {}
        assert [*Path(temporary).iterdir()] == []

    assert_continued(shown, out, err)


def assert_continued(shown: Sequence[str], out: str, err: str) -> None:
    """Assert that a second run found the answer, and no probe whose label was shown ran again."""
    (answer,) = items_of(out, "bisect")
    again = {label: "[known]" in text for text in err.splitlines() if (label := label_of(text))}
    assert (answer["label"].split()[-1], answer["kind"]) == ("c22", "first-bad")
    assert [label for label in shown if label and not again[label]] == []
    assert answer["cost"]["ran"] + len({*shown} - {""}) == len(again) + 2  # both sides of the change run twice


@pytest.mark.parametrize("lines", [2, 9])
def test_a_full_disk_loses_no_probe(tmp_path: Path, lines: int) -> None:
    """It is full after both ends, or after a further round: an error, and the same command runs only what is left."""
    alone = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "mount", "-t", "tmpfs", "x", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("no mount in a namespace of one's own")
    clone, disk = repositories.chain(tmp_path / "c.git", 30), tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "here").mkdir()  # each point has a copy of it
    line = [sys.executable, "-m", "matrix", "bisect", "--repo", str(clone), *QUESTION, "--json"]
    line += ["--out", str(disk / "out"), "--", "python", "-c", LIMIT]
    driver = [*alone, sys.executable, "-m", "tests.real.full_disk", str(disk), str(lines), *line]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.check_output(driver, cwd=tmp_path / "here", env=environ, text=True, timeout=COMMAND_S)
    runs = json.loads(output)

    (status, _, errors), (_, out, err) = runs
    assert status == 2
    assert re.search("No space left on device|disk is full", errors)  # of a file, or of the history
    assert_continued([label for text in errors.splitlines() if (label := label_of(text))], out, err)


SINCE = """
import importlib.metadata as m
new = [int(part) for part in m.version({name!r}).split(".")[:2]] >= {version}
assert not new, "the planted failure"
"""
PAIR = ("--good", "torch-2.3.1/mcore-0.7.0/te-none/driver-none", "--bad", "torch-2.4.0/mcore-0.8.0/te-none/driver-none")


@pytest.mark.parametrize(
    ("question", "name", "version"),
    [
        (("--axis", "mcore", "--torch", "2.4.0", "--good", "0.7.0", "--bad", "0.8.0"), "megatron-core", [0, 8]),
        (("--axis", "numpy", "--torch", "2.4.0", "--good", "1.25.2", "--bad", "1.26.4"), "numpy", [1, 26]),
        (PAIR, "megatron-core", [0, 8]),
        (("--axis", "mcore", "--torch", "2.4.0", "--good", "0.7.0", "--bad", "0.8.0"), "megatron-core", [9]),
    ],
    ids=["a release", "a package", "two stacks", "an error"],
)
def test_printed_lines_run_in_a_fresh_shell(
    tmp_path: Path, question: tuple[str, ...], name: str, version: list[int]
) -> None:
    """From another folder, with `megatrix` on PATH: each line of a probe, of an error, and the plan of the draft."""
    programs, elsewhere = tmp_path / "bin", tmp_path / "elsewhere"
    for folder in (programs, elsewhere):
        folder.mkdir()
    program = programs / "megatrix"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m matrix "$@"\n')
    program.chmod(0o755)
    names = ("HOME", *(one for one in os.environ if one.startswith(("PIP_", "UV_"))))
    environ = {key: os.environ[key] for key in names if key in os.environ}
    environ |= {"PATH": f"{programs}:{os.environ['PATH']}", "MEGATRIX_OUT": str(tmp_path / "runs")}
    code = SINCE.format(name=name, version=version)
    line = ["megatrix", "bisect", *question, "--out", str(tmp_path / "out"), "--", "python", "-c", code]
    done = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=COMMAND_S, check=False)

    printed = re.findall(
        r"(?m)(?:^  (good|bad): (?:.*\n    )?|reproduce it: )(\S*=\S+ megatrix run .*)", done.stdout + done.stderr
    )
    assert printed, done.stderr
    assert (done.returncode == 2) is (version == [9])
    for expected, text in printed:
        line = ["bash", "-c", f"{text} --json"]
        repeated = subprocess.run(
            line, cwd=elsewhere, env=environ, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        (record,) = records_of(repeated.stdout)
        shows = {"good": (0, "passed"), "bad": (0, "raised"), "": (0, "passed")}[expected]
        assert (repeated.returncode, record["outcome"]) == shows, repeated.stderr
    if version != [9]:
        (draft,) = re.findall(r"draft: (.*)", done.stdout)
        text = Path(draft).read_text(encoding="utf-8")
        Path(draft).write_text(text.replace("TODO", "known"), encoding="utf-8")  # a draft is left out of all commands
        entry = read_toml(Path(draft))
        plan = f"MEGATRIX_FAILURES={Path(draft).parents[1]} megatrix plan --within 'failure=={entry['id']}'"
        listed = subprocess.check_output(["bash", "-c", plan], cwd=elsewhere, env=environ, text=True)
        assert f"{len(entry['pick'])} cases in {len(entry['pick'])} cells" in listed


def label_of(line: str) -> str:
    """Return the commit that a line of the progress names, "" for another line."""
    return line.split()[1] if line[:6] in ("good  ", "bad   ", "skip  ") else ""
