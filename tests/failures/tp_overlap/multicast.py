"""CUDA Multicast under userbuffers: is it possible, does a Transformer Engine use it, does UB_SKIPMC help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from matrix.kit.facts import Range
from matrix.kit.preflight import Answer, Error, Machine, Status, status_of

VARIABLE: Final = "UB_SKIPMC"
POSSIBLE: Final = "CUDA Multicast is possible"
EFFECTIVE: Final = f"{VARIABLE} is effective"


class Gate(str, Enum):
    """What a Transformer Engine looks at before it uses multicast."""

    NEVER = "never"
    SM = "sm"
    DEVICE = "device"


class Off(str, Enum):
    """Which values of UB_SKIPMC switch multicast off."""

    ANY = "any"
    NONZERO = "nonzero"


@dataclass(frozen=True)
class Needs:
    """What multicast needs: the kernel driver, the CUDA version of the user-mode driver, the compute capability."""

    driver: Range
    cuda: Range
    sm: Range
    source: str


@dataclass(frozen=True)
class Window:
    """What the Transformer Engines of a range do; `error` is raised where multicast is used and not possible."""

    te: Range
    gate: Gate
    off: Off
    source: str
    error: Error | None = None


def possible(machine: Machine, needs: Needs) -> tuple[bool | None, str]:
    """Return whether the machine can use multicast, and why; None where too little is known."""
    if machine.multicast is not None:
        return machine.multicast, f"the driver says so of the device (SM {machine.sm or 'unknown'})"
    for name, got, wanted in (
        ("SM", machine.sm, needs.sm),
        ("driver", machine.driver, needs.driver),
        ("the user-mode driver's CUDA", machine.cuda, needs.cuda),
    ):
        if got is not None and got not in wanted:
            return False, f"needs {name} {wanted.text}, and this is {got}"
    if machine.sm is None or machine.driver is None:
        return None, "the GPU or its driver is not known"
    return None, f"SM {machine.sm} and driver {machine.driver} have it where the GPUs are on an NVSwitch"


def answers(
    te: str, machine: Machine, skipmc: str | None, needs: Needs, windows: Sequence[Window]
) -> tuple[Answer, ...]:
    """Return whether multicast is possible, and whether UB_SKIPMC is effective here.

    `skipmc` is its value; where it is None, not set, the second answer is what setting it to 1 would do.
    """
    able, why = possible(machine, needs)
    window = next((window for window in windows if te in window.te), None)
    if window is None:
        unknown = f"nothing is known of transformer-engine {te}"
        return Answer(POSSIBLE, status_of(able), why), Answer(EFFECTIVE, Status.UNKNOWN, unknown)
    wanted, by = _wanted(window, machine, needs)
    error = _error(window, skipmc) if wanted and able is False else None
    return Answer(POSSIBLE, status_of(able), f"{why}; {by}", error), _effective(window, wanted, skipmc)


def _wanted(window: Window, machine: Machine, needs: Needs) -> tuple[bool | None, str]:
    """Return whether this Transformer Engine uses multicast here, or refuses to start without it; UB_SKIPMC aside."""
    if window.gate is Gate.NEVER:
        return False, "this Transformer Engine never uses it"
    if window.gate is Gate.DEVICE:
        return True, "this Transformer Engine asks the device, and does not start without it"
    if machine.sm is None:
        return None, "this Transformer Engine goes by the SM alone"
    wanted = machine.sm in needs.sm
    return wanted, f"this Transformer Engine goes by the SM alone and {'uses' if wanted else 'does not use'} it"


def _error(window: Window, skipmc: str | None) -> Error | None:
    """Return what is raised where multicast is used and not possible, None where UB_SKIPMC averts it."""
    if skipmc is None:
        return window.error
    if window.off is Off.ANY:
        return None
    try:
        return None if int(skipmc) else window.error
    except ValueError:
        return Error("ValueError", f"invalid literal for int() with base 10: {skipmc!r} ({VARIABLE})")


def _effective(window: Window, wanted: bool | None, skipmc: str | None) -> Answer:
    if wanted is None:
        return Answer(EFFECTIVE, Status.UNKNOWN, "the SM is not known")
    if not wanted:
        return Answer(EFFECTIVE, Status.NO, "it changes nothing: CUDA IPC is used here anyway")
    if window.off is Off.ANY:
        return Answer(EFFECTIVE, Status.YES, "set to anything, 0 too, it makes userbuffers go by CUDA IPC")
    useless = skipmc is not None and _error(window, skipmc) is not None
    return Answer(EFFECTIVE, status_of(not useless), "only a number other than 0 makes userbuffers go by CUDA IPC")
