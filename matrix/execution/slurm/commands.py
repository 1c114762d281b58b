"""Slurm's own commands, as this project asks them. The edge: `call` starts them, all else is read here.

Only what works without accounting: squeue and sinfo, no sacct. Written against Slurm 22.05; 20.11 and later have every
option.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matrix.errors import MatrixError, closest

# Seconds for one command. slurmctld answers in milliseconds; Slurm's clients give up after MessageTimeout, 10 s.
ANSWER_S: Final = 60.0
SEPARATOR: Final = "|"  # in no name that this project gives, and in no node's name
ENDED: Final = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)
REST: Final = (
    -1
)  # the index of those tasks of an array that were cancelled before they began: squeue has one line for them
# A pending task with one of these reasons starts only when somebody intervenes.
STUCK: Final = frozenset(("BadConstraints", "DependencyNeverSatisfied", "JobHeldAdmin", "launch failed requeued held"))
# What the controller calls a name of the user's that it does not know. It refuses anything else for want of resources,
# of which another case may need less.
UNKNOWN: Final = re.compile(r"Invalid (partition|account|qos|node name|license|wckey)|reservation is invalid")
# States of nodes for which sbatch --test-only has the same words as for a node that was never there.
AWAY: Final = frozenset(("down", "drained", "draining", "fail", "failing", "maint", "reserved", "unknown"))


@dataclass(frozen=True)
class CommandOutput:
    """What a command ended with."""

    status: int
    out: str
    err: str


Call = Callable[[Sequence[str], str, Mapping[str, str] | None], CommandOutput]


def call(command: Sequence[str], given: str = "", environ: Mapping[str, str] | None = None) -> CommandOutput:
    """Run a command with `given` on its input. Raises MatrixError when it is not there or does not end."""
    try:
        done = subprocess.run(
            command,
            input=given,
            env={**(os.environ if environ is None else environ), "SLURM_BITSTR_LEN": "0"},  # squeue cuts no list short
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except FileNotFoundError:
        fix = "run it where Slurm's commands are, a login node"
        raise MatrixError("Slurm is needed for --engine slurm", got=f"no {command[0]} on PATH", fix=fix) from None
    except subprocess.TimeoutExpired:
        raise MatrixError("Slurm does not answer", got=f"{command[0]} took more than {ANSWER_S:.0f} s") from None
    return CommandOutput(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Node:
    """A node: its features ("driver535"), its generic resources ("gpu:h100:8"), processors and state ("drained")."""

    name: str
    features: tuple[str, ...]
    gres: str
    cpus: int
    state: str

    @property
    def away(self) -> bool:
        """Say whether it takes no jobs until a person lets it. A flag of Slurm may follow the state: down*."""
        return self.state.rstrip("*~#!%$@^-+") in AWAY


@dataclass(frozen=True)
class Task:
    """One element of an array as the queue has it, or its REST. `reason` is Slurm's for a task that waits."""

    name: str
    job: str  # of the array
    index: int
    state: str
    node: str
    reason: str

    @property
    def live(self) -> bool:
        """Say whether it may still run."""
        return self.state not in ENDED

    @property
    def stuck(self) -> bool:
        """Say whether it waits for a person. Who holds an array gives its running tasks the reason too."""
        return self.state == "PENDING" and self.reason in STUCK

    @property
    def end(self) -> str:
        """Return how it ended, in words."""
        why = f" ({self.reason})" if self.reason in STUCK else ""
        return f"Slurm task {self.id} ended {self.state}{why} on {self.node or 'no node'}"

    @property
    def id(self) -> str:
        """Return its name in Slurm: 12_3."""
        return f"{self.job}_{self.index}"


class Commands:
    """Asks Slurm; `extra` are the user's own options of sbatch, after which come ours.

    Every method raises MatrixError with Slurm's words when it does not answer.
    """

    def __init__(self, extra: Sequence[str] = (), call: Call = call) -> None:
        self._extra, self._call = tuple(extra), call

    def nodes(self) -> list[Node]:
        """Return the nodes, whatever their state, each once."""
        form = SEPARATOR.join(("%N", "%f", "%G", "%c", "%T"))
        rows = [line.split(SEPARATOR) for line in self._ask("sinfo", "-h", "-N", "-o", form).splitlines()]
        found = {
            name: Node(
                name, () if features == "(null)" else tuple(features.split(",")), gres, int(cpus.rstrip("+")), state
            )
            for name, features, gres, cpus, state in rows
        }
        return list(found.values())

    def partitions(self) -> list[str]:
        """Return the partitions."""
        return self._ask("sinfo", "-h", "-o", "%R").split()

    def longest(self) -> int:
        """Return how many tasks an array may have."""
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", self._ask("scontrol", "show", "config"), re.MULTILINE)
        return int(found[1]) - 1 if found else 1000  # Slurm's default is 1001, one more than the highest index

    def refuses(self, options: Sequence[str]) -> str:
        """Return why no node could ever run a job with these options, in Slurm's words; "" if one could."""
        said = self._call(("sbatch", "--test-only", *options, *self._extra), "#!/bin/sh\n", None)
        return "" if said.status == 0 else words(said.err)

    def mistake(self) -> str:
        """Return what no job may be asked with, in Slurm's words: the user's options, or SBATCH_*; "" if nothing is."""
        said = self.refuses(())
        asked = "allocation failure" in said  # sbatch itself took the options
        return said if not asked or UNKNOWN.search(said) else ""

    def submit(self, options: Sequence[str], script: str, environ: Mapping[str, str]) -> str:
        """Submit a job; return its id."""
        said = self._call(("sbatch", "--parsable", *options, *self._extra), script, environ)
        if said.status != 0:
            raise MatrixError("Slurm refuses the job", got=words(said.err), where=" ".join(options))
        return said.out.strip().partition(";")[0]  # with a cluster's name behind it in a federation

    def tasks(self, prefix: str) -> list[Task]:
        """Return the array tasks of the jobs whose name begins so, those that ended not long ago too."""
        form = SEPARATOR.join(("%j", "%F", "%K", "%T", "%N", "%r"))
        rows = self._ask("squeue", "-h", "-r", "--me", "--states=all", "-o", form).splitlines()
        found = (row.split(SEPARATOR) for row in rows if row.startswith(prefix))
        return [
            Task(name, job, index, state, node, reason)
            for name, job, indexes, state, node, reason in found
            for index in spread(indexes)
        ]

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs or tasks, by id."""
        if jobs:
            self._ask("scancel", "--quiet", *jobs)

    def _ask(self, *command: str) -> str:
        said = self._call(command, "", None)
        if said.status != 0:
            got = words(said.err) or f"status {said.status}"
            raise MatrixError(f"{command[0]} failed", got=got, fix="run it on a login node, or set SLURM_CONF")
        return said.out


def spread(text: str) -> list[int]:
    """Return the indexes in squeue's words for them: "3", or "3-5,8" of tasks that wait; REST for "N/A"."""
    if not text.strip("[")[:1].isdigit():
        return [REST]
    bounds = [part.partition("-") for part in text.strip("[]").partition("%")[0].split(",")]
    return [index for low, _, high in bounds for index in range(int(low), int(high or low) + 1)]


def words(text: str) -> str:
    """Return what a command of Slurm said, in one line without the names of the programs."""
    lines = (re.sub(r"^(sbatch|squeue|sinfo|scancel|scontrol)?:? ?(error: )?", "", line) for line in text.splitlines())
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))


def of(partition: str, options: Sequence[str], call: Call = call) -> Commands:
    """Return the commands for a user's partition ("" for the cluster's default) and options of sbatch.

    Raises MatrixError when there is no such partition, or Slurm does not understand the options.
    """
    commands = Commands((*((f"--partition={partition}",) if partition else ()), *options), call)
    known = commands.partitions()
    if partition and partition not in known:
        raise MatrixError(
            "no such partition", got=partition, expected=f"one of {', '.join(known)}", fix=closest(partition, known)
        )
    if said := commands.mistake():
        fix = "man sbatch has its options; SBATCH_* of the environment count too"
        raise MatrixError("sbatch does not take these options", where=" ".join(options) or None, got=said, fix=fix)
    return commands
