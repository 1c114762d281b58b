"""A GPU that ranks share: NCCL's start and log, refusals, a daemon of MPS from its start to its end, peer access."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.cases.machine_requirements import Placement
from matrix.ground.catalog.distributions import SharedNccl, nccl_sharing
from matrix.ground.catalog.failure import Expectation, Signature
from matrix.ground.catalog.schema import Identifier, Pattern
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.planned import Kind
from matrix.kit.rank import LackError
from matrix.prove.execution.ranks import shared_gpu
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.shared_gpu import (
    NcclLog,
    admitted,
    daemon,
    lack_of,
    may_crash,
    peer_access,
    processes,
)
from matrix.prove.execution.ranks.supervisor import Supervisor
from tests.unit.catalogs import failure
from tests.unit.prove.execution.ranks.test_supervisor import MakeJob, module

SHARED = Placement(1, "nccl", nccl=SharedNccl("2.30.7"), each=2)
# A stand-in of NCCL: it logs as NCCL 2.30 does, and in the ranks of $STUCK ncclCommInitRank never returns.
NCCL = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int ncclGetVersion(int *version) { *version = 23007; return 0; }
int ncclCommInitRank(int ranks, int rank)
{
    char name[4096], digit = '0' + rank;
    const char *file = getenv("NCCL_DEBUG_FILE"), *mark = strstr(file, "%p");
    snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - file), file, getpid(), mark + 2);
    FILE *log = fopen(name, "w");
    setlinebuf(log);
    fprintf(log, "h:1:1 [0] NCCL INFO [Rank %d] ncclCommInitRank comm 0x1 nranks %d - Init START\n", rank, ranks);
    while (strchr(getenv("STUCK"), digit)) pause();
    fprintf(log, "h:1:1 [0] NCCL INFO Channel 00 : %d[0] -> %d[0] via SHM/direct\n", rank, 1 - rank);
    fprintf(log, "h:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank %d nranks %d - Init COMPLETE\n", rank, ranks);
    return 0;
}
"""


@pytest.fixture
def shared(job: MakeJob, tmp_path: Path) -> Callable[..., RankJob]:
    """Return a function that makes a job of two ranks that share a GPU over the stand-in."""
    library = tmp_path / "libnccl.so.2"
    words = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-x", "c", "-", "-o", str(library)]
    subprocess.run(words, input=NCCL, text=True, check=True)
    module(tmp_path / "overlay", "torch", "")

    def make(stuck: str = "", **changes: Any) -> RankJob:
        usual = {"deadline_s": 3.0, "nccl": "2.30.7", "libraries": (str(library),), "gpus": 1}
        path = (str(tmp_path / "overlay"),)
        return job("start_nccl", fresh=True, path=path, env={"STUCK": stuck}, **{**usual, **changes})

    return make


def test_start_of_nccl_without_end_is_unavailable(supervisor: Supervisor, shared: Callable[..., RankJob]) -> None:
    """Not a mere hang, and never red: the ranks did not reach what the case tests."""
    outcome = supervisor.run(shared("01"))
    assert (outcome.kind, [lack.kind for lack in outcome.lacks]) == (OutcomeKind.UNAVAILABLE, [Kind.NCCL_START])
    assert outcome.reason.startswith("NCCL did not start in 3 s in ranks 0, 1, which share a GPU: run it alone")


@pytest.mark.parametrize(("stuck", "waits"), [("1", [0]), ("", [0, 1])])
def test_rank_that_waits_elsewhere_is_a_hang(
    supervisor: Supervisor, shared: Callable[..., RankJob], stuck: str, waits: list[int]
) -> None:
    """It may be what the case shows: a rank that does not reach a collective leaves the others in NCCL's start."""
    assert supervisor.run(shared(stuck, kwargs={"waits": waits})).kind is OutcomeKind.HUNG


def test_transport_is_that_of_the_log(supervisor: Supervisor, shared: Callable[..., RankJob]) -> None:
    outcome = supervisor.run(shared())
    assert (outcome.kind, outcome.resolved) == (OutcomeKind.PASSED, {"NCCL transport": "SHM/direct"})


def test_library_that_cannot_be_loaded_is_unavailable(
    supervisor: Supervisor, shared: Callable[..., RankJob], tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("no library")
    outcome = supervisor.run(shared(libraries=(str(tmp_path / "text"),)))
    assert outcome.kind is OutcomeKind.UNAVAILABLE
    assert "a library that they need can't be loaded" in outcome.reason


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("ncclInvalidUsage\nLast error:\nDuplicate GPU detected : rank 1 and rank 0", "torch 2.14 or later"),
        ("Multiple Ranks are using the same GPU/Partition.", "torch 2.14 or later"),
        ("Cuda failure 1 'CUDA driver version is insufficient for CUDA runtime version'", "a newer driver"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "nvidia-smi -c DEFAULT"),
        ("CUDA error: the MPS client has been terminated by the server", "run without --mps"),
        ("CUDA error: an illegal memory access was encountered", None),
    ],
)
def test_refusal_of_a_shared_gpu_has_its_remedy(message: str, fix: str | None) -> None:
    lack = lack_of(Outcome(OutcomeKind.RAISED, chain=(Raised("RuntimeError", message),)), NcclLog(), shared=True)
    assert (lack is None) if fix is None else (lack is not None and fix in lack.text)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA-capable device(s) is/are busy or unavailable", OutcomeKind.UNAVAILABLE),
        ("the MPS client has been terminated by the server", OutcomeKind.UNAVAILABLE),
        ("Duplicate GPU detected : rank 1 and rank 0", OutcomeKind.RAISED),
    ],
)
def test_taken_gpu_of_one_rank_is_unavailable(
    supervisor: Supervisor, job: MakeJob, message: str, kind: OutcomeKind
) -> None:
    """Another process has it in exclusive mode, or its daemon of MPS ended: never red."""
    assert supervisor.run(job("refused", world_size=1, gpus=1, kwargs={"message": message})).kind is kind


@pytest.mark.parametrize(
    ("expectation", "signature", "crashes"),
    [
        (Expectation.BROKEN, {"signal": "SIGSEGV"}, True),
        (Expectation.UNKNOWN, {"exception": "RuntimeError", "message": Pattern("an illegal memory access")}, True),
        (Expectation.BROKEN, {"exception": "AssertionError"}, False),
        (Expectation.WORKS, {"signal": "SIGSEGV"}, False),
    ],
)
def test_case_that_may_crash_has_no_mps(expectation: Expectation, signature: dict[str, Any], crashes: bool) -> None:
    entry = failure(signature=(Signature(Identifier("one"), **signature),))
    assert may_crash(entry, expectation) is crashes


# A stand-in of the program: `-d` starts a daemon that starts a server, as NVIDIA's does, and each request reaches it.
CONTROL = """#!/bin/sh
pid="$CUDA_MPS_PIPE_DIRECTORY/control"
if [ "$1" = -d ]; then
    [ -z "$REFUSES" ] || { echo "An instance of this daemon is already running"; exit 1; }
    setsid sh -c 'echo $$ >"$CUDA_MPS_PIPE_DIRECTORY/control"; sleep 600 & wait' &
    while [ ! -s "$pid" ]; do sleep 0.01; done
    exit 0
fi
read request
grep -q . "/proc/$(cat "$pid")/cmdline" 2>/dev/null || { echo "Cannot find MPS control daemon process"; exit 0; }
if [ "$request" = quit ] && [ -z "$IGNORES" ]; then kill -- -"$(cat "$pid")"; fi
"""


@pytest.fixture
def control(tmp_path: Path) -> dict[str, str]:
    """Return an environment with the stand-in on PATH."""
    program = tmp_path / "bin" / shared_gpu.CONTROL
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("ignores", ["", "1"])
def test_daemon_starts_answers_and_leaves_nothing(
    tmp_path: Path, control: dict[str, str], ignores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not quit is killed, with the server that it started."""
    monkeypatch.setattr(shared_gpu, "CONTROL_S", 2.0)
    with daemon(tmp_path, {**control, "IGNORES": ignores}) as variables:
        pipes = Path(variables["CUDA_MPS_PIPE_DIRECTORY"])
        assert (pipes.parent, len(processes(pipes)) >= 2) == (tmp_path, True)
    time.sleep(0.2)  # those that were killed end
    assert (processes(pipes), list(tmp_path.glob("mps-*"))) == ([], [])


def test_daemon_that_ends_is_the_reason(tmp_path: Path, control: dict[str, str]) -> None:
    lost = "the daemon of MPS ended while the case ran: MPS: Cannot find MPS control daemon process"
    killed = contextlib.ExitStack()
    pipes = Path(killed.enter_context(daemon(tmp_path, control))["CUDA_MPS_PIPE_DIRECTORY"])
    while found := processes(pipes):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with pytest.raises(LackError, match=lost):
        killed.close()
    assert list(tmp_path.glob("mps-*")) == []


@pytest.mark.parametrize(
    ("environ", "lack"),
    [({"REFUSES": "1"}, "An instance of this daemon"), ({"PATH": "/nonexistent"}, "none on PATH")],
)
def test_daemon_that_does_not_start_is_a_lack(
    tmp_path: Path, control: dict[str, str], environ: dict[str, str], lack: str
) -> None:
    with pytest.raises(LackError, match=lack), daemon(tmp_path, control | environ):
        pytest.fail("it started")
    assert list(tmp_path.glob("mps-*")) == []


def test_next_run_ends_an_abandoned_daemon(tmp_path: Path, control: dict[str, str]) -> None:
    code = (
        "import os, sys; from pathlib import Path; from matrix.prove.execution.ranks.shared_gpu import daemon\n"
        "with daemon(Path(sys.argv[1]), os.environ): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env={**os.environ, **control}, check=False)
    (abandoned,) = tmp_path.glob("mps-*")
    assert processes(abandoned)
    with daemon(tmp_path, control) as first, daemon(tmp_path, control) as second:  # another's stays
        assert (processes(abandoned), abandoned.exists()) == ([], False)
        assert all(processes(Path(pipes)) for variables in (first, second) for pipes in variables.values())


@pytest.mark.parametrize(("mps", "ctas"), [(False, "4"), (True, "2")])
def test_ranks_get_the_variables_of_sharing(
    tmp_path: Path, control: dict[str, str], monkeypatch: pytest.MonkeyPatch, mps: bool, ctas: str
) -> None:
    monkeypatch.setenv("PATH", control["PATH"])
    monkeypatch.setattr(shared_gpu, "foreign", lambda: "")
    placement = Placement(1, "nccl", nccl=SharedNccl("2.30.7"), each=2, mps=mps, peers=mps)
    with admitted(lambda variables: Held(dict(variables)), placement, tmp_path) as granted:
        assert {name: granted[name] for name in nccl_sharing().variables} == {
            **nccl_sharing().variables,
            "NCCL_MAX_CTAS": ctas,
        }
        assert ("CUDA_MPS_PIPE_DIRECTORY" in granted) is ("UB_SKIPMC" in granted) is mps


def test_daemon_of_someone_else_is_not_used(
    tmp_path: Path, control: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA would use it without being asked to."""
    monkeypatch.setenv("PATH", control["PATH"])
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    shared_gpu.foreign.cache_clear()
    with daemon(tmp_path, control) as variables:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", variables["CUDA_MPS_PIPE_DIRECTORY"])
        assert shared_gpu.foreign() == variables["CUDA_MPS_PIPE_DIRECTORY"]
        with admitted(lambda asked: Held(dict(asked)), SHARED, tmp_path) as granted:
            assert granted["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path / "no-mps")
    shared_gpu.foreign.cache_clear()
    assert shared_gpu.foreign() == ""


class Held:
    """GPUs that are held, with these variables."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables

    def __enter__(self) -> dict[str, str]:
        return self.variables

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


def test_stand_in_answers_that_a_gpu_has_access(tmp_path: Path) -> None:
    """Compiled once; CUDA itself answers 0 for a GPU and itself."""
    library = peer_access(tmp_path / "cache")
    written = library.stat().st_mtime_ns
    answer = ctypes.c_int()
    assert ctypes.CDLL(str(peer_access(tmp_path / "cache"))).cudaDeviceCanAccessPeer(ctypes.byref(answer), 0, 0) == 0
    assert (answer.value, library.stat().st_mtime_ns) == (1, written)


def test_stand_in_without_a_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MatrixError, match="userbuffers on a shared GPU need a library"):
        peer_access(tmp_path / "cache")
