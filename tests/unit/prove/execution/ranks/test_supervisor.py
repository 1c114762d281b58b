"""The state of a rank at its start, and the outcome of a job."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.kit.rank import LackError
from matrix.prove.execution.ranks import forkserver, supervisor
from matrix.prove.execution.ranks.forkserver import Forkserver
from matrix.prove.execution.ranks.forkserver_child import REQUEST
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.shared_gpu import peer_access
from matrix.prove.execution.ranks.supervisor import Supervisor
from matrix.prove.provision.project import ROOT
from tests.unit.processes import HANG_S
from tests.unit.prove.execution.ranks.marks import MARK, marked

MakeJob = Callable[..., RankJob]


@pytest.fixture
def describe(supervisor: Supervisor, job: MakeJob, fresh: bool) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that runs a job and returns each rank's description."""

    def run(**changes: Any) -> list[dict[str, Any]]:
        outcome = supervisor.run(job("describe", fresh=fresh, **changes))
        assert outcome.kind is OutcomeKind.PASSED, outcome.evidence
        return [end.value for end in outcome.ranks]

    return run


Describe = Callable[..., list[dict[str, Any]]]


def test_ranks_receive_their_rank_device_and_arguments(describe: Describe) -> None:
    ranks = describe(world_size=3, device="cuda", kwargs={"steps": 5})
    assert [(rank["rank"], rank["world_size"], rank["device"], rank["kwargs"]) for rank in ranks] == [
        (number, 3, "cuda", {"steps": 5}) for number in range(3)
    ]


def test_arguments_are_json_values_in_both_modes(describe: Describe) -> None:
    """A tuple kept in only one mode would make pooled and fresh runs differ."""
    assert describe(world_size=1, kwargs={"shape": (2, 3)})[0]["kwargs"] == {"shape": [2, 3]}


def test_environment_is_torchruns_and_the_jobs(describe: Describe) -> None:
    environments = [rank["environment"] for rank in describe(env={"OWN": "1", "OMP_NUM_THREADS": "4"})]
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "OWN"]
    assert [[rank[name] for name in names] for rank in environments] == [
        ["0", "0", "2", "2", "127.0.0.1", "lo", "1"],
        ["1", "1", "2", "2", "127.0.0.1", "lo", "1"],
    ]
    assert environments[0]["OMP_NUM_THREADS"] == "4"
    assert environments[0]["MASTER_PORT"] == environments[1]["MASTER_PORT"]


def test_rank_renews_its_threads_first(supervisor: Supervisor, job: MakeJob, tmp_path: Path) -> None:
    """Else threads of its backward pass do it at once, and one may find none: "Invalid thread pool!"."""
    lines = ["import sys, types", "renewed = []"]
    lines.append("torch = types.SimpleNamespace(get_num_threads=lambda: 1, set_num_threads=renewed.append)")
    lines += ["sys.modules['torch'] = torch", "def body(rank): return renewed"]
    (tmp_path / "with_torch.py").write_text("\n".join(lines))
    outcome = supervisor.run(job("with_torch:body", path=(str(tmp_path),)))
    assert [end.value for end in outcome.ranks] == [[1], [1]]


def test_cpu_jobs_hide_gpus(describe: Describe) -> None:
    """Otherwise torch.cuda.is_available() is true, and upstream passes the CPU device to CUDA functions."""
    assert {one["environment"]["CUDA_VISIBLE_DEVICES"] for one in describe()} == {""}
    ranks = describe(device="cuda", env={"CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert {one["environment"]["CUDA_VISIBLE_DEVICES"] for one in ranks} == {"GPU-1"}


def test_extensions_are_built_in_the_jobs_folder(describe: Describe) -> None:
    """A killed rank leaves a lock in this folder, for which the next compilation would wait."""
    ranks = describe()
    folders = {Path(one["environment"]["TORCH_EXTENSIONS_DIR"]).parent for one in ranks}
    assert folders == {Path(one["workdir"]).parent for one in ranks}


def test_environment_has_no_supervisor_variables(describe: Describe) -> None:
    (found,) = describe(world_size=1)
    assert REQUEST not in found["environment"]
    assert found["environment"].get("PYTHONPATH") == os.environ.get("PYTHONPATH")


def test_owners_environment_and_main_module_are_restored(describe: Describe) -> None:
    before = dict(os.environ), sys.modules["__main__"]
    describe()
    assert (dict(os.environ), sys.modules["__main__"]) == before


def test_each_rank_leads_its_own_session(describe: Describe) -> None:
    for rank in describe():
        assert rank["session"] == rank["group"] == rank["pid"]


def test_rank_has_no_stdin_arguments_or_main_module(describe: Describe) -> None:
    (found,) = describe(world_size=1)
    assert (found["stdin"], found["argv"], found["main"]) == (
        "",
        ["tests.unit.prove.execution.ranks.bodies:describe"],
        None,
    )


def test_rank_writes_no_core_and_ooms_first(describe: Describe) -> None:
    (found,) = describe(world_size=1)
    assert found["core_limit"] == 0
    assert found["oom_score_adj"] > int(Path("/proc/self/oom_score_adj").read_text())


def test_rank_has_the_default_start_method(describe: Describe) -> None:
    assert describe(world_size=1)[0]["start_method"] is None


def test_overlays_come_first_then_the_owners_path(describe: Describe) -> None:
    (found,) = describe(world_size=1, path=("/overlay/one", "/overlay/two"))
    assert found["path"][:2] == ["/overlay/one", "/overlay/two"]
    assert found["path"][2:] == [entry or str(Path.cwd()) for entry in sys.path]


@pytest.mark.parametrize(
    ("body", "hidden", "expected"), [("find", (), True), ("find", ("wave",), False), ("find_stand_in", ("wave",), True)]
)
def test_hidden_package_is_absent_or_a_stand_in(
    supervisor: Supervisor, job: Callable[..., RankJob], body: str, hidden: tuple[str, ...], expected: bool
) -> None:
    """`wave` is in every Python, and this code does not import it."""
    outcome = supervisor.run(job(body, world_size=1, kwargs={"name": "wave"}, hidden=hidden))
    assert [expected] == [rank.value for rank in outcome.ranks]


def test_preloaded_modules_exist_only_in_forks(describe: Describe, fresh: bool) -> None:
    (found,) = describe(world_size=1)
    assert ("matrix.prove.execution.ranks.forkserver_child" in found["modules"]) is not fresh


def test_ranks_share_a_folder(supervisor: Supervisor, job: MakeJob, fresh: bool) -> None:
    outcome = supervisor.run(job("meet", world_size=3, fresh=fresh))
    assert [end.value for end in outcome.ranks] == [0, 1, 2]
    assert all(0 < end.used["seconds"] < end.seconds and end.used["memory"] > 1 for end in outcome.ranks)


def test_shared_folder_and_store_are_removed(describe: Describe) -> None:
    ranks = describe()
    assert ranks[0]["workdir"] == ranks[1]["workdir"]
    assert ranks[0]["workdir_is_there"]
    assert not Path(ranks[0]["workdir"]).parent.exists()
    assert ranks[0]["init_method"].startswith("file:///")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_body_can_use_multiprocessing(supervisor: Supervisor, job: MakeJob, fresh: bool, method: str) -> None:
    outcome = supervisor.run(job("use_multiprocessing", kwargs={"method": method}, world_size=1, fresh=fresh))
    assert (outcome.kind, outcome.ranks[0].value) == (OutcomeKind.PASSED, 9), outcome.evidence


def test_passed_outcome_has_seconds_and_log_paths(supervisor: Supervisor, job: MakeJob, tmp_path: Path) -> None:
    outcome = supervisor.run(job("nothing"))
    assert (outcome.kind, outcome.leftovers, outcome.attempts) == (OutcomeKind.PASSED, 0, ())
    assert [end.log for end in outcome.ranks] == [str(tmp_path / "logs" / f"rank-{rank}.log") for rank in range(2)]
    assert 0 < max(end.seconds for end in outcome.ranks) <= outcome.seconds


def test_outcome_round_trips_through_json(supervisor: Supervisor, job: MakeJob) -> None:
    outcome = supervisor.run(job("raise_beside_waiting_peers"))
    assert decode(Outcome, encode(outcome)) == outcome


@pytest.fixture
def fake_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def make(script: str) -> None:
        program = tmp_path / "bin" / "py-spy"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)

    return make


def test_py_spy_on_path_adds_its_stacks(
    supervisor: Supervisor, job: MakeJob, fake_py_spy: Callable[[str], None]
) -> None:
    fake_py_spy('echo "spied: $*"')
    outcome = supervisor.run(job("straggle", deadline_s=0.5))
    stacks = outcome.ranks[1].stacks
    assert "in straggle" in stacks
    assert "spied: dump --pid " in stacks


def test_secrets_are_masked_in_stacks(
    supervisor: Supervisor, job: MakeJob, fake_py_spy: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """py-spy prints the command line of the process, and a frame may contain any folder."""
    monkeypatch.setenv("HF_TOKEN", "hunter2-hunter2")
    fake_py_spy('echo "Process $3: train --token hunter2-hunter2"')
    outcome = supervisor.run(job("straggle", deadline_s=0.5))
    stacks = Path(outcome.ranks[1].log).with_suffix(".stacks").read_text()
    assert "train --token [masked]" in stacks
    assert "hunter2" not in stacks + outcome.ranks[1].stacks


def test_given_secrets_are_masked_in_log_and_outcome(job: MakeJob, alone: None) -> None:
    """No variable of this environment has them. What looks like a secret is masked, too."""
    words = "hunter2-hunter2 and https://me:hunter2@host"
    with Supervisor(preload=("json",), secrets=("hunter2-hunter2",)) as supervisor:
        outcome = supervisor.run(job("say_and_raise", kwargs={"words": words}, world_size=1))
    assert Path(outcome.ranks[0].log).read_text().startswith("[masked] and https://[masked]@host\n")
    assert outcome.chain[-1].message == "[masked] and https://[masked]@host"
    assert "hunter2" not in json.dumps(encode(outcome))


def test_hanging_py_spy_does_not_delay_the_stop(
    supervisor: Supervisor, job: MakeJob, fake_py_spy: Callable[[str], None]
) -> None:
    fake_py_spy("exec sleep 3600")
    began = time.monotonic()
    outcome = supervisor.run(job("hang_stubborn", deadline_s=0.5))
    assert time.monotonic() - began < 60  # py-spy would sleep for an hour
    assert outcome.kind is OutcomeKind.HUNG


def test_exit_ends_the_forkserver(supervisor: Supervisor, job: MakeJob, mark: str, alone: None) -> None:
    supervisor.run(job("nothing"))
    assert any("multiprocessing.forkserver" in command for command in marked(mark).values())
    supervisor.__exit__(None, None, None)
    assert not any("multiprocessing.forkserver" in command for command in marked(mark).values())


def module(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)


def distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_absent_preload_module_is_skipped(job: MakeJob, alone: None) -> None:
    with Supervisor(preload=("no_such_module", "no_such_package.module")) as supervisor:
        outcome = supervisor.run(job("nothing", world_size=1))
    assert (outcome.kind, Path(outcome.ranks[0].log).read_text()) == (OutcomeKind.PASSED, "")


@pytest.mark.parametrize("fault", ["import no_such_dependency", "raise OSError('libcudnn.so.9: cannot open')", "1/0"])
def test_failed_preload_is_reported_in_the_rank_log(job: MakeJob, alone: None, tmp_path: Path, fault: str) -> None:
    module(tmp_path / "base", "broken", fault)
    with Supervisor(preload=("broken",), preload_path=(str(tmp_path / "base"),)) as supervisor:
        outcome = supervisor.run(job("nothing", world_size=1))
    assert outcome.kind is OutcomeKind.PASSED
    assert "the forkserver could not import broken: " in Path(outcome.ranks[0].log).read_text()


def test_crashing_preload_module_is_skipped(job: MakeJob, alone: None, tmp_path: Path) -> None:
    module(tmp_path / "base", "deadly", "import os\nos.abort()")
    with Supervisor(preload=("deadly",), preload_path=(str(tmp_path / "base"),)) as supervisor:
        fine = supervisor.run(job("nothing"))
        crashed = supervisor.run(job("deadly:body"))
    assert fine.kind is OutcomeKind.PASSED
    assert fine.attempts == ("the forkserver died while it imported deadly; it runs without them",)
    assert (crashed.kind, crashed.signal) == (OutcomeKind.SIGNALED, "SIGABRT")


def test_preload_that_starts_cuda_is_undone(job: MakeJob, alone: None, tmp_path: Path) -> None:
    """CUDA does not work in a process forked after cuInit; a torch of NGC's called it at its import."""
    module(tmp_path / "base", "eager", "from matrix.read.machine import cuda\ncuda.initialised = lambda: True")
    with Supervisor(preload=("eager",), preload_path=(str(tmp_path / "base"),)) as supervisor:
        outcome = supervisor.run(job("describe", world_size=1))
    assert outcome.attempts == ("an import of eager started CUDA; the forkserver runs without them",)
    value = outcome.ranks[0].value
    assert "eager" not in value["modules"]
    assert value["environment"]["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


def test_preload_that_leaves_a_thread_is_undone(job: MakeJob, alone: None, tmp_path: Path) -> None:
    """A rank would inherit its locks and not the thread that releases them, and could hang at any later fork."""
    lasting = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    module(tmp_path / "base", "threaded", lasting)
    with Supervisor(preload=("threaded",), preload_path=(str(tmp_path / "base"),)) as supervisor:
        outcome = supervisor.run(job("describe", world_size=1))
    (note,) = outcome.attempts
    assert note.startswith("an import of threaded left a thread (threaded: Thread-1")
    assert note.endswith("); the forkserver runs without them")
    assert "threaded" not in outcome.ranks[0].value["modules"]


def test_endless_preload_raises(alone: None, tmp_path: Path) -> None:
    module(tmp_path / "base", "endless", "import time\ntime.sleep(3600)")
    with pytest.raises(MatrixError, match="not ready"):
        Forkserver(["endless"], [str(tmp_path / "base")], preload_s=0.5).ensure()


def test_longer_deadline_is_that_of_imports(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine so busy that an import of torch takes minutes; a shorter one does not shorten their time."""
    module(tmp_path / "base", "slow", "import time\ntime.sleep(1)")
    monkeypatch.setattr(supervisor, "PRELOAD_S", 0.2)
    with pytest.raises(MatrixError, match="MEGATRIX_DEADLINE"):
        Supervisor(["slow"], [str(tmp_path / "base")], deadline_s=0.1)._server.ensure()
    with Supervisor(["slow"], [str(tmp_path / "base")], deadline_s=HANG_S) as slow:
        assert slow._server.ensure()


def test_forkserver_that_dies_before_its_preload_raises(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, "sitecustomize", f"import os\nif {REQUEST!r} in os.environ: os._exit(1)")
    monkeypatch.setattr(forkserver, "ROOT", f"{tmp_path}{os.pathsep}{forkserver.ROOT}")
    with pytest.raises(MatrixError, match="dies at its start"):
        Forkserver(["json"], [], preload_s=20.0).ensure()


def test_stopped_forkserver_is_not_reached_then_restarted(
    job: MakeJob, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "ANSWER_S", 0.5)
    with Supervisor(preload=()) as supervisor:
        (end,) = supervisor.run(job("describe", world_size=1)).ranks
        parent = int(end.value["parent"])
        os.kill(parent, signal.SIGSTOP)
        stopped = supervisor.run(job("nothing"))
        monkeypatch.undo()
        assert supervisor.run(job("nothing")).kind is OutcomeKind.PASSED
    assert stopped.kind is OutcomeKind.NOT_REACHED
    assert "was stopped" in stopped.reason


def test_stopped_forkserver_does_not_hold_its_owner(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "ANSWER_S", 0.2)
    server = Forkserver([], [])
    server.ensure()
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert server.pid == 0


def test_second_forkserver_in_a_process_raises(alone: None) -> None:
    process = multiprocessing.get_context("forkserver").Process(target=int)
    process.start()
    process.join()
    try:
        with pytest.raises(MatrixError, match="already runs"):
            Forkserver([], []).ensure()
    finally:
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("version", "fresh", "kind"),
    [
        ("2.4.0", False, OutcomeKind.PASSED),
        ("2.3.1", False, OutcomeKind.RAISED),
        ("2.3.1", True, OutcomeKind.PASSED),
    ],
)
def test_overlay_with_another_preloaded_version_raises(
    job: MakeJob, alone: None, tmp_path: Path, version: str, fresh: bool, kind: OutcomeKind
) -> None:
    module(tmp_path / "base", "engine", "__version__ = '2.4.0+cu121'")
    distribution(tmp_path / "overlay", "engine", version)
    with Supervisor(preload=("engine",), preload_path=(str(tmp_path / "base"),)) as supervisor:
        outcome = supervisor.run(job("nothing", world_size=1, path=(str(tmp_path / "overlay"),), fresh=fresh))
    assert outcome.kind is kind
    assert kind is OutcomeKind.PASSED or "preloaded in another version" in outcome.reason


@pytest.mark.parametrize(
    ("expected", "version", "kind", "reason"),
    [
        ("2.30.7", 23007, OutcomeKind.PASSED, ""),
        ("2.30.7", 22809, OutcomeKind.UNAVAILABLE, "ranks share a GPU over NCCL 2.30.7, and NCCL 2.28.9 is loaded"),
        ("2.30.7", 0, OutcomeKind.UNAVAILABLE, "over NCCL 2.30.7, and torch here loads no libnccl.so.2"),
    ],
)
def test_ranks_prove_the_nccl_that_is_loaded(
    job: MakeJob, supervisor: Supervisor, tmp_path: Path, expected: str, version: int, kind: OutcomeKind, reason: str
) -> None:
    """The library is a stand-in with the name of the real one, and so is torch."""
    module(tmp_path / "overlay", "torch", "")
    library, libraries = tmp_path / "libnccl.so.2", tuple[str, ...]()
    if version:
        source = f"int ncclGetVersion(int *version) {{ *version = {version}; return 0; }}"
        words = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-x", "c", "-", "-o", str(library)]
        subprocess.run(words, input=source, text=True, check=True)
        libraries = (str(library),)
    shared = job("nothing", path=(str(tmp_path / "overlay"),), fresh=True, nccl=expected, libraries=libraries, gpus=1)
    outcome = supervisor.run(shared)
    assert (outcome.kind, outcome.reason.endswith(reason)) == (kind, True)


def test_mark_is_in_the_environment_of_ranks(describe: Describe, mark: str) -> None:
    """Checks the mark by which the other tests find left processes."""
    assert describe(world_size=1)[0]["environment"][MARK] == mark


class Gate:
    """An admission that records what is true when it is entered and left."""

    def __init__(self, log: Path, *, waits_s: float = 0.0, lacks: str = "") -> None:
        self.log, self.waits_s, self.lacks = log, waits_s, lacks
        self.entered: list[str] = []
        self.left: list[list[int]] = []

    @contextmanager
    def __call__(self) -> Iterator[Mapping[str, str]]:
        self.entered.append(self.log.read_text(encoding="utf-8"))
        time.sleep(self.waits_s)
        if self.lacks:
            raise LackError(self.lacks)
        yield {"GRANTED": "GPU-7"}
        pids = [int(word) for word in self.log.read_text(encoding="utf-8").split() if word.isdigit()]
        self.left.append([pid for pid in pids if Path(f"/proc/{pid}").exists()])


@pytest.fixture
def gated(tmp_path: Path, job: MakeJob) -> Callable[..., RankJob]:
    """Return a function that makes jobs whose module prints at its import, and whose body returns a variable."""

    def make(text: str = "", **changes: Any) -> RankJob:
        lines = ["import os", "print('imported', os.environ.get('GRANTED'), flush=True)", text, "def body(rank):"]
        lines += ["    print(os.getpid(), flush=True)", "    return os.environ.get('GRANTED')"]
        (tmp_path / "gated.py").write_text("\n".join(lines), encoding="utf-8")
        return job(f"{tmp_path / 'gated.py'}:body", **changes)

    return make


def test_admission_is_entered_when_ranks_are_ready(
    supervisor: Supervisor, gated: MakeJob, tmp_path: Path, fresh: bool
) -> None:
    gate = Gate(tmp_path / "logs" / "rank-1.log")
    outcome = supervisor.run(gated(fresh=fresh), gate)
    assert (outcome.kind, [end.value for end in outcome.ranks]) == (OutcomeKind.PASSED, ["GPU-7", "GPU-7"])
    assert gate.entered == ["imported None\n"]
    assert gate.left == [[]]


def test_wait_for_an_admission_is_in_no_deadline(supervisor: Supervisor, gated: MakeJob, tmp_path: Path) -> None:
    outcome = supervisor.run(gated(deadline_s=3.0), Gate(tmp_path / "logs" / "rank-1.log", waits_s=4.0))
    assert outcome.kind is OutcomeKind.PASSED
    assert outcome.seconds < 3.0


def test_failed_import_enters_no_admission(supervisor: Supervisor, gated: MakeJob, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "logs" / "rank-1.log")
    outcome = supervisor.run(gated("import no_such_module"), gate)
    assert (outcome.kind, gate.entered) == (OutcomeKind.RAISED, [])
    assert outcome.ranks[0].chain[-1].type == "ModuleNotFoundError"


def test_import_that_hangs_ends_at_the_deadline(supervisor: Supervisor, gated: MakeJob, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "logs" / "rank-1.log")
    outcome = supervisor.run(gated("import time; time.sleep(60)", deadline_s=1.0), gate)
    assert (outcome.kind, gate.entered) == (OutcomeKind.HUNG, [])


def test_body_does_not_run_without_its_admission(supervisor: Supervisor, gated: MakeJob, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "logs" / "rank-1.log", lacks="the GPUs are not free")
    outcome = supervisor.run(gated(), gate)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.UNAVAILABLE, "the GPUs are not free")
    assert gate.log.read_text(encoding="utf-8") == "imported None\n"


BODY = """
import os
import warnings
from pathlib import Path

def body(rank, word):
    mine = Path(rank.workdir, f"{rank.rank}.pid")
    mine.with_suffix(".part").write_text(str(os.getpid()))
    mine.with_suffix(".part").rename(mine)
    other = Path(rank.workdir, f"{1 - rank.rank}.pid")
    while not other.exists():
        pass
    return [rank.rank, rank.world_size, word, os.environ["RANK"], os.environ["WORLD_SIZE"], other.read_text()]

def warns(rank):
    warnings.warn("old", DeprecationWarning)
    return "returned"

def fails(rank):
    raise KeyError("upstream")

def answers(rank):
    import ctypes
    return hasattr(ctypes.CDLL(None), "cudaDeviceCanAccessPeer")
"""
MAIN = """
import os, sys
from pathlib import Path
from matrix.prove.execution.ranks import supervisor
from matrix.prove.execution.ranks.rank_spec import RankJob
folder = Path({folder!r})
def job(function, size, **kwargs):
    return RankJob(f"{{folder}}/reproduction.py:{{function}}", kwargs, size, (), {{}}, 60, folder / "logs")
"""


def ran(folder: Path, code: str) -> str:
    (folder / "reproduction.py").write_text(BODY)
    text = MAIN.format(folder=str(folder)) + code
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_other_ranks_end_with_it(tmp_path: Path) -> None:
    code = "*own, other = supervisor.debug(job('body', 2, word='a'))\nprint(own, Path('/proc', other).exists())\n"
    assert ran(tmp_path, code) == "[0, 2, 'a', '0', '2'] False\n"
    assert (tmp_path / "logs" / "rank-1.log").read_text() == ""


def test_process_has_its_variables_again(tmp_path: Path) -> None:
    code = """
before = dict(os.environ), sys.argv[:], sys.path[:]
try:
    supervisor.debug(job('fails', 1))
except KeyError:
    print((dict(os.environ), sys.argv, sys.path) == before, "RANK" in os.environ)
"""
    assert ran(tmp_path, code) == "True False\n"


def test_warnings_of_upstream_are_no_errors(tmp_path: Path) -> None:
    code = "import warnings\nwarnings.simplefilter('error')\nprint(supervisor.debug(job('warns', 1)))\n"
    assert ran(tmp_path, code) == "returned\n"


def test_exception_of_the_body_reaches_the_caller(tmp_path: Path) -> None:
    code = """
import traceback
try:
    supervisor.debug(job('fails', 1))
except KeyError as error:
    print(traceback.extract_tb(error.__traceback__)[-1].name)
"""
    assert ran(tmp_path, code) == "fails\n"


def test_rank_loads_its_libraries(tmp_path: Path) -> None:
    """Those of ranks that share a GPU; without them it raises something else than the case did."""
    code = f"print(supervisor.debug(replace(job('answers', 1), libraries=({str(peer_access(tmp_path))!r},))))\n"
    assert ran(tmp_path, f"from dataclasses import replace\n{code}") == "True\n"


def test_job_of_mpirun_is_refused(tmp_path: Path) -> None:
    job = RankJob("a:b", {}, 2, (), {}, 60, tmp_path, launcher="mpirun")
    with pytest.raises(MatrixError, match="mpirun starts"):
        supervisor.debug(job)
