"""A real Slurm cluster of two nodes on one host: Debian's slurmctld and two slurmd.

    python -m tests.slurm.cluster FOLDER     # starts it, prints the variables to export, stops it at Ctrl-C

Node n470 has the feature driver470, node n535 driver535 and two GPUs, which are device files without hardware.
Needs root and Debian's packages slurmctld, slurmd and slurm-client (22.05 runs; no munge, no systemd, no cgroup).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

NODES: Final = {"n470": "driver470", "n535": "driver535"}
GPUS: Final = 2  # of n535
NEEDED: Final = ("slurmctld", "slurmd", "sbatch", "squeue")
DAEMONS: Final = (b"slurmctld\0", b"slurmd\0", b"slurmstepd: ", b": slurmscriptd\0")
UP_S: Final = 600.0  # limit for hanging tests: it starts within 2 s on two busy cores, in 60 s at a load of 50
DOWN_S: Final = 5  # seconds until the controller drops a silent node (SlurmdTimeout; 300 by default)
# A task whose node failed waits cred_expire before it starts again; without that line 120 s.
CONFIGURATION: Final = """
ClusterName=megatrix
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
MaxArraySize=1001
MinJobAge=3600
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout={down}
InactiveLimit=0
KillWait=5
JobRequeue=1
GresTypes=gpu
NodeName=DEFAULT CPUs=2 RealMemory=4000 State=UNKNOWN
NodeName=n470 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} Feature=driver470
NodeName=n535 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} Feature=driver535 Gres=gpu:{gpus}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PlugStackConfig={folder}/plugstack.conf
"""


class Cluster:
    """The cluster, which runs for the length of the context; `environ` are the variables for Slurm's commands.

    `plugins` are lines of plugstack.conf, `programs` is a folder that comes first on the PATH of the nodes.
    """

    def __init__(self, folder: Path, plugins: str = "", programs: Path | None = None) -> None:
        self.folder, self.plugins = folder, plugins
        self.path = f"{programs}:{path()}" if programs else path()
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf")}
        if os.geteuid() != 0:
            raise RuntimeError("needs root: the nodes' GPUs are device files")
        missing = [name for name in NEEDED if shutil.which(name, path=path()) is None]
        if missing:
            raise RuntimeError(f"needs {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client")

    def __enter__(self) -> Cluster:
        for name in ("state", "spool", "run", "log", "dev"):
            (self.folder / name).mkdir(parents=True)
        first, second, port = free_ports(3)
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(
            folder=self.folder, host=host, port=port, first=first, second=second, down=DOWN_S, gpus=GPUS
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # 22.05 reads the file but uses no cgroup
        (self.folder / "plugstack.conf").write_text(self.plugins)
        devices = self.folder / "dev"
        for number in range(GPUS):
            os.mknod(devices / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(195, number))
        (self.folder / "gres.conf").write_text(f"NodeName=n535 Name=gpu File={devices}/gpu[0-{GPUS - 1}]\n")
        try:
            self.start("slurmctld", "-c")
            for node in NODES:
                self.start("slurmd", "-N", node)
            wait(lambda: self.call("sinfo", "-h", "-t", "idle", "-o", "%D") == str(len(NODES)), "the nodes are not up")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, *command: str) -> None:
        """Start a daemon."""
        subprocess.run(command, env=os.environ | self.environ | {"PATH": self.path}, check=True, timeout=UP_S)

    def stop(self) -> None:
        """Cancel all jobs and kill every daemon, step daemon and job; return after all have ended."""
        subprocess.run(
            ["scancel", "--user=root", "--quiet"],
            env=os.environ | self.environ,
            check=False,
            capture_output=True,
            timeout=30,
        )
        while processes := self.processes():
            for process in processes:
                kill(process)
            time.sleep(0.05)  # they are no children of this process: poll /proc

    def processes(self) -> list[int]:
        """Return the cluster's daemons and the processes of its jobs, without Slurm's client commands."""
        ours = f"SLURM_CONF={self.environ['SLURM_CONF']}\0".encode()
        return [
            pid
            for pid, text in everyone()
            if ours in text and (text.startswith(DAEMONS) or b"\0SLURMD_NODENAME=" in text)
        ]

    def kill_node(self, node: str) -> None:
        """Kill a node as a power cut does: its slurmd, its step daemons and its jobs."""
        for process in [self.daemon(node), *self.steps(node), *self.jobs(node)]:
            kill(process)

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        self.start("slurmd", "-N", node)

    def daemon(self, node: str) -> int:
        """Return a node's slurmd."""
        return int((self.folder / "run" / f"{node}.pid").read_text())

    def jobs(self, node: str) -> list[int]:
        """Return the processes that a node's step daemons started, in the order of their ids."""
        variable = f"\0SLURMD_NODENAME={node}\0".encode()
        found = dict(everyone())
        return sorted(pid for pid in self.processes() if variable in found.get(pid, b""))

    def steps(self, node: str) -> list[int]:
        """Return a node's step daemons: the parents of its jobs."""
        daemons = {pid for pid, text in everyone() if text.startswith(b"slurmstepd")}
        return sorted(daemons.intersection(map(parent, self.jobs(node))))

    def call(self, *command: str) -> str:
        """Return the output of a Slurm command."""
        done = subprocess.run(command, env=os.environ | self.environ, check=True, capture_output=True, text=True)
        return done.stdout.strip()


def path() -> str:
    """Return PATH with Debian's folders of daemons."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def everyone() -> Iterable[tuple[int, bytes]]:
    """Yield every process with its command line and environment."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / "cmdline").read_bytes() + b"\0" + (folder / "environ").read_bytes()
            except OSError:
                continue  # an ended process or a kernel thread


def parent(process: int) -> int:
    """Return the pid of a process's parent, 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def alive(process: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(process: int) -> None:
    """Kill a process that may have ended."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def free_ports(count: int) -> list[int]:
    """Return free TCP ports."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def wait(done: Callable[[], bool], what: str, seconds: float = UP_S) -> None:
    """Poll until `done`; raise TimeoutError with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} after {seconds:.0f} s")
        time.sleep(0.1)


if __name__ == "__main__":
    with Cluster(Path(sys.argv[1]).resolve()) as cluster:
        sys.stdout.write("".join(f"export {name}={value}\n" for name, value in cluster.environ.items()))
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
