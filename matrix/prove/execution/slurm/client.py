"""Slurm's commands: `call` runs one; the rest of this module builds command lines and parses output.

Uses only commands that work without accounting: squeue and sinfo, not sacct. Written against Slurm 22.05; every option
exists in 20.11 and later.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matrix.ground.errors import MatrixError, closest

# Seconds for one command. slurmctld replies within milliseconds; Slurm's clients give up after MessageTimeout, 10 s.
ANSWER_S: Final = 60.0
SEPARATOR: Final = "|"  # not part of any job name of this project or of any node name
ENDED: Final = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)
# The index of the tasks of an array that were cancelled before they started: squeue prints one line for all of them.
REST: Final = -1
# A pending task with one of these reasons starts only after an administrator or its owner acts.
STUCK: Final = frozenset(("BadConstraints", "DependencyNeverSatisfied", "JobHeldAdmin", "launch failed requeued held"))
# Error messages of the controller for unknown names in the user's options. Every other refusal is for lack of
# resources; another case may need fewer.
UNKNOWN: Final = re.compile(r"Invalid (partition|account|qos|node name|license|wckey)|reservation is invalid")
# Node states for which sbatch --test-only prints the same message as for a node that does not exist.
AWAY: Final = frozenset(("down", "drained", "draining", "fail", "failing", "maint", "reserved", "unknown"))


@dataclass(frozen=True)
class CommandOutput:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


Call = Callable[[Sequence[str], str, Mapping[str, str] | None], CommandOutput]


def call(command: Sequence[str], given: str = "", environ: Mapping[str, str] | None = None) -> CommandOutput:
    """Run a command with `given` as its input. Raises MatrixError when it is missing or does not end in ANSWER_S."""
    # squeue truncates no index list
    variables = {**(os.environ if environ is None else environ), "SLURM_BITSTR_LEN": "0"}
    try:
        done = subprocess.run(
            command, input=given, env=variables, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except FileNotFoundError:
        raise MatrixError(
            "Slurm is needed for --engine slurm",
            got=f"no {command[0]} on PATH",
            fix="run it where Slurm's commands are installed, e.g. on a login node",
        ) from None
    except subprocess.TimeoutExpired:
        raise MatrixError("Slurm does not answer", got=f"{command[0]} took more than {ANSWER_S:.0f} s") from None
    return CommandOutput(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Node:
    """A node: its features ("driver535"), its generic resources ("gpu:h100:8"), processors and state ("drained").

    `memory` is in MiB; 1, Slurm's default, where the site does not state it.
    """

    name: str
    features: tuple[str, ...]
    gres: str
    cpus: int
    state: str
    memory: int = 1

    @property
    def away(self) -> bool:
        """Return whether the node accepts no jobs until an administrator acts. A flag may follow the state: down*."""
        return self.state.rstrip("*~#!%$@^-+") in AWAY


@dataclass(frozen=True)
class Task:
    """One element of an array in the queue, or its REST. `reason` is why Slurm does not start a pending task."""

    name: str
    job: str  # the id of the array
    index: int
    state: str
    node: str
    reason: str

    @property
    def live(self) -> bool:
        """Return whether the task may still run."""
        return self.state not in ENDED

    @property
    def stuck(self) -> bool:
        """Return whether the task needs a person to start it. Holding an array sets the reason of running tasks too."""
        return self.state == "PENDING" and self.reason in STUCK

    @property
    def end(self) -> str:
        """Return a sentence with the state in which the task ended and its node."""
        why = f" ({self.reason})" if self.reason in STUCK else ""
        return f"Slurm task {self.id} ended {self.state}{why} on {self.node or 'no node'}"

    @property
    def id(self) -> str:
        """Return the task's id in Slurm: 12_3."""
        return f"{self.job}_{self.index}"


class Commands:
    """Slurm's commands; `extra` are the user's sbatch options, passed after those of this project.

    Every method raises MatrixError with Slurm's error message when a command fails.
    """

    def __init__(self, extra: Sequence[str] = (), call: Call = call) -> None:
        self._extra, self._call = tuple(extra), call

    def nodes(self) -> list[Node]:
        """Return the nodes in every state, each once."""
        form = SEPARATOR.join(("%N", "%f", "%G", "%c", "%T", "%m"))
        rows = [line.split(SEPARATOR) for line in self._output("sinfo", "-h", "-N", "-o", form).splitlines()]
        nodes = {}
        for name, listed, gres, cpus, state, memory in rows:
            features = () if listed == "(null)" else tuple(listed.split(","))
            nodes[name] = Node(name, features, gres, int(cpus.rstrip("+")), state, int(memory.rstrip("+")))
        return list(nodes.values())

    def partitions(self) -> list[str]:
        """Return the names of the partitions."""
        return self._output("sinfo", "-h", "-o", "%R").split()

    def longest(self) -> int:
        """Return the largest number of tasks of an array (MaxArraySize)."""
        size = re.search(r"^MaxArraySize\s*=\s*(\d+)", self._output("scontrol", "show", "config"), re.MULTILINE)
        return int(size[1]) - 1 if size else 1000  # Slurm's default is 1001, one more than the highest index

    def option_error(self, options: Sequence[str]) -> str:
        """Return Slurm's error message if no node can ever run a job with these options, else ""."""
        output = self._call(("sbatch", "--test-only", *options, *self._extra), "#!/bin/sh\n", None)
        return "" if output.status == 0 else words(output.err)

    def mistake(self) -> str:
        """Return Slurm's error message if the user's options or SBATCH_* are invalid for every job, else ""."""
        refusal = self.option_error(())
        parsed = "allocation failure" in refusal  # sbatch itself accepted the options
        return refusal if not parsed or UNKNOWN.search(refusal) else ""

    def submit(self, options: Sequence[str], script: str, environ: Mapping[str, str]) -> str:
        """Submit a job and return its id."""
        output = self._call(("sbatch", "--parsable", *options, *self._extra), script, environ)
        if output.status != 0:
            raise MatrixError("Slurm refuses the job", got=words(output.err), where=" ".join(options))
        return output.out.strip().partition(";")[0]  # in a federation the cluster's name follows the id

    def tasks(self, prefix: str) -> list[Task]:
        """Return the array tasks of the jobs whose name starts with `prefix`, including tasks that ended recently."""
        form = SEPARATOR.join(("%j", "%F", "%K", "%T", "%N", "%r"))
        rows = self._output("squeue", "-h", "-r", "--me", "--states=all", "-o", form).splitlines()
        columns = (row.split(SEPARATOR) for row in rows if row.startswith(prefix))
        return [
            Task(name, job, index, state, node, reason)
            for name, job, indexes, state, node, reason in columns
            for index in spread(indexes)
        ]

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs or tasks, by id."""
        if jobs:
            self._output("scancel", "--quiet", *jobs)

    def _output(self, *command: str) -> str:
        output = self._call(command, "", None)
        if output.status != 0:
            got = words(output.err) or f"status {output.status}"
            raise MatrixError(f"{command[0]} failed", got=got, fix="run it on a login node, or set SLURM_CONF")
        return output.out


def spread(text: str) -> list[int]:
    """Return the indexes that squeue prints as "3", as "3-5,8" for pending tasks, or as "N/A" (REST)."""
    if not text.strip("[")[:1].isdigit():
        return [REST]
    bounds = [part.partition("-") for part in text.strip("[]").partition("%")[0].split(",")]
    return [index for low, _, high in bounds for index in range(int(low), int(high or low) + 1)]


def words(text: str) -> str:
    """Return the error output of a Slurm command as one line, without the names of the programs."""
    lines = (re.sub(r"^(sbatch|squeue|sinfo|scancel|scontrol)?:? ?(error: )?", "", line) for line in text.splitlines())
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))


def of(partition: str, options: Sequence[str], call: Call = call) -> Commands:
    """Return the commands for a partition ("" for the cluster's default) and the user's sbatch options.

    Raises MatrixError when the partition does not exist or Slurm rejects the options.
    """
    commands = Commands((*((f"--partition={partition}",) if partition else ()), *options), call)
    partitions = commands.partitions()
    if partition and partition not in partitions:
        expected, fix = f"one of {', '.join(partitions)}", closest(partition, partitions)
        raise MatrixError("no such partition", got=partition, expected=expected, fix=fix)
    if refusal := commands.mistake():
        raise MatrixError(
            "sbatch does not take these options",
            where=" ".join(options) or None,
            got=refusal,
            fix="man sbatch lists the options; SBATCH_* environment variables apply too",
        )
    return commands
