"""The rank that a job's failure is blamed on, and its fault: a pure function of how the ranks ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matrix.ground.verdicts.outcome import EVIDENCE, Outcome, OutcomeKind, Raised, RankEnd
from matrix.ground.verdicts.rank_logs import stand_in, standing

# s by which a death is dated back. The kernel closes a dying process's sockets before it reports the death, so a peer's
# exception, with any message, can be reported first. On gloo it came 2 to 21 ms after the death in 12 of 12 tries; on
# a busy machine either order occurs.
HEAD_START_S: Final = 0.5

# Messages that report a lost peer: from gloo, c10d's stores and NCCL, as in the libraries of torch 2.4 and 2.13; from
# the operating system (errno's texts).
CASCADE: Final = re.compile(
    r"Connection closed by (remote )?peer"
    r"|Connection reset by peer"
    r"|Connection refused"
    r"|Broken pipe"
    r"|Socket (unexpectedly )?closed"
    r"|Connection was likely closed"
    r"|Remote peer closed the connection"
    r"|Application timeout caused pair closure"
    r"|remote process exited or there was a network error"
    r"|ncclRemoteError",
    re.IGNORECASE,
)
MEMORY_TYPES: Final = frozenset({"MemoryError", "OutOfMemoryError"})  # Python's; torch's for CUDA
MEMORY: Final = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc|CUDA out of memory|Cannot allocate memory"
)
KILLED_WORKER: Final = re.compile(r"DataLoader worker \(pid.{0,99}\) (is killed by signal: Killed|exited unexpectedly)")
TERMINATE: Final = "terminate called"  # libstdc++ prints it before it aborts on an uncaught C++ exception


@dataclass(frozen=True)
class RankFault:
    """The fault of one rank. `when` is in s since the start of the job; `cascade`: it failed because a peer did."""

    end: RankEnd
    kind: OutcomeKind
    what: str
    when: float
    cascade: bool


def classify(
    ends: Sequence[RankEnd],
    *,
    logs: Mapping[int, str],
    traces: Mapping[int, str],
    deadline_s: float,
    timed_out: bool,
    oom_kills: int,
) -> Outcome:
    """Return the outcome of a job whose ranks ended like `ends`.

    `logs` holds the end of each rank's log, `traces` the stacks of the ranks that were stopped, `oom_kills` the number
    of processes that the kernel killed for memory meanwhile. The cause is the earliest rank that died or raised. A
    rank whose message reports a lost peer is the cause only if there is no other, and never past the deadline. Without
    such a rank the job hung (`timed_out`) or passed. Raises ValueError when `ends` show none of these: the caller lost
    a rank.
    """
    faults = [fault for end in ends if (fault := fault_of(end, logs.get(end.rank, ""), oom_kills))]
    if timed_out:  # a rank that loses a peer then lost it to the supervisor, which stops them one after another
        faults = [fault for fault in faults if not (fault.cascade and fault.when >= deadline_s)]
    if faults:
        root = min(faults, key=lambda fault: (fault.cascade, fault.when, fault.end.rank))
        code = root.end.exit_code
        return Outcome(
            root.kind,
            reason=f"rank {root.end.rank} {root.what}",
            rank=root.end.rank,
            signal=signal_name(-code) if code is not None and code < 0 else None,
            exit_code=code,
            chain=root.end.chain,
            evidence=logs.get(root.end.rank, ""),
            ranks=tuple(ends),
        )
    if timed_out:
        return _hung(ends, logs, traces, deadline_s)
    unfinished = [end.rank for end in ends if not end.returned or end.exit_code != 0]
    if unfinished:
        raise ValueError(f"no fault, no timeout, yet ranks {unfinished} did not finish")
    return Outcome(OutcomeKind.PASSED, exit_code=0, ranks=tuple(ends))


def fault_of(end: RankEnd, log: str, oom_kills: int) -> RankFault | None:
    """Return the fault that one rank's end shows by itself; None when it finished, or was stopped while it ran."""
    if end.chain:
        memory = any(
            raised.type in MEMORY_TYPES
            or MEMORY.search(raised.message)
            or (oom_kills > 0 and KILLED_WORKER.search(raised.message))
            for raised in end.chain
        )
        kind = OutcomeKind.OUT_OF_MEMORY if memory else OutcomeKind.RAISED
        reason = f"{'ran out of memory' if memory else 'raised'}: {headline(end.chain[0])}"
        return RankFault(end, kind, reason, end.seconds, bool(CASCADE.search(end.chain[0].message)))
    if end.stopped or end.exit_code is None:
        return None
    when = end.seconds - HEAD_START_S
    late = " after its body had returned" if end.returned else ""
    if end.exit_code < 0:
        printed = log[log.rindex(TERMINATE) :] if TERMINATE in log else ""
        name = signal_name(-end.exit_code)
        if name == "SIGKILL" and oom_kills > 0:
            reason = f"was killed (SIGKILL){late} while the kernel's count of processes killed for memory rose"
            return RankFault(end, OutcomeKind.OUT_OF_MEMORY, reason, when, False)
        if name == "SIGABRT" and MEMORY.search(printed):
            return RankFault(end, OutcomeKind.OUT_OF_MEMORY, f"ran out of memory and aborted{late}", when, False)
        cascade = name == "SIGABRT" and bool(CASCADE.search(printed))
        return RankFault(end, OutcomeKind.SIGNALED, f"died by {name}{late}", when, cascade)
    if end.exit_code > 0 or not end.returned:
        moment = late or " before its body returned"
        return RankFault(end, OutcomeKind.EXITED, f"left with status {end.exit_code}{moment}", when, False)
    return None


def _hung(ends: Sequence[RankEnd], logs: Mapping[int, str], traces: Mapping[int, str], deadline_s: float) -> Outcome:
    """Return the outcome of a hang: the ranks that had not finished, where each stood, and any suspect."""
    late = [end for end in ends if end.stopped or end.exit_code is None or (end.chain and end.seconds >= deadline_s)]
    late = late or [end for end in ends if end.seconds >= deadline_s]  # they ended while stacks were collected
    done = [end for end in ends if end not in late]
    stands = {end.rank: stand for end in late if (stand := stand_in(traces.get(end.rank, "")))}
    groups: dict[str, list[RankEnd]] = {}
    for end in late:
        stand = stands.get(end.rank)
        position = f"in {stand}" if stand else "at an unknown place"
        if end.exit_code is not None:
            position = f"finished after {end.seconds:.2f} s"
        elif end.returned:
            position = f"after its body had returned, {position}"
        groups.setdefault(position, []).append(end)
    described = "; ".join(f"{name_ranks(group)} {position}" for position, group in groups.items())
    # Where all ranks but one stand at one place, these wait for that one.
    alone = [group[0] for group in groups.values() if len(group) == 1]
    suspects = late if done or len(late) == 1 else alone if len(groups) == 2 and len(late) > 2 else []
    odd = standing({str(rank): (0, stand) for rank, stand in stands.items()}) if len(stands) == len(late) > 1 else None
    if odd and odd.ranks and not done:
        suspects = [end for end in late if odd.ranks == (str(end.rank),)]
    suspect = suspects[0].rank if suspects else None
    finished = f", {name_ranks(done)} had" if done else ""
    evidence = "\n".join(f"rank {end.rank}:\n{traces.get(end.rank, '')}" for end in late)
    if suspect is not None:
        evidence += f"\nend of rank {suspect}'s log:\n{logs.get(suspect, '')}"
    return Outcome(
        OutcomeKind.HUNG,
        reason=f"{name_ranks(late)} had not finished after {deadline_s:g} s{finished}: {described}",
        rank=suspect,
        evidence=evidence[:EVIDENCE],
        ranks=tuple(ends),
    )


def headline(raised: Raised) -> str:
    """Return "Type: first line of the message"."""
    line = raised.message.strip().partition("\n")[0]
    return f"{raised.type}: {line}" if line else raised.type


def name_ranks(ends: Sequence[RankEnd]) -> str:
    """Return "rank 3", or "ranks 0, 1, 2"."""
    return f"rank{'s' if len(ends) > 1 else ''} {', '.join(str(end.rank) for end in ends)}"


def signal_name(number: int) -> str:
    """Return "SIGSEGV" for 11, "signal 40" for a number without a name (real-time signals)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
