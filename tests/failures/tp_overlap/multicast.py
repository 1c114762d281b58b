"""CUDA Multicast under userbuffers: whether it is possible, is used, and can be switched off by UB_SKIPMC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from matrix.kit.preflight import Answer, Error, Machine, Range, Status, status_of

VARIABLE: Final = "UB_SKIPMC"
POSSIBLE: Final = "CUDA Multicast is possible"
EFFECTIVE: Final = f"{VARIABLE} is effective"


class Gate(str, Enum):
    """The condition that a Transformer Engine checks before it uses multicast."""

    NEVER = "never"
    SM = "sm"
    DEVICE = "device"


class Off(str, Enum):
    """The values of UB_SKIPMC that switch multicast off."""

    ANY = "any"
    NONZERO = "nonzero"


@dataclass(frozen=True)
class Needs:
    """Requirements of multicast: kernel driver, CUDA version of the user-mode driver, compute capability."""

    driver: Range
    cuda: Range
    sm: Range
    source: str


@dataclass(frozen=True)
class Window:
    """The behaviour of a range of Transformer Engines; `error` is raised where multicast is used but not possible."""

    te: Range
    gate: Gate
    off: Off
    source: str
    error: Error | None = None


def possible(machine: Machine, needs: Needs) -> tuple[bool | None, str]:
    """Return whether the machine can use multicast, and why; None where too little is known."""
    if machine.multicast is not None:
        return machine.multicast, f"the driver reports it for the device (SM {machine.sm or 'unknown'})"
    for name, got, required in (
        ("SM", machine.sm, needs.sm),
        ("driver", machine.driver, needs.driver),
        ("the user-mode driver's CUDA", machine.cuda_version, needs.cuda),
    ):
        if got is not None and got not in required:
            return False, f"needs {name} {required.text}, and this is {got}"
    if machine.sm is None or machine.driver is None:
        return None, "the GPU or its driver is not known"
    return None, f"SM {machine.sm} and driver {machine.driver} have it where the GPUs are on an NVSwitch"


def answers(
    te: str, machine: Machine, skipmc: str | None, needs: Needs, windows: Sequence[Window]
) -> tuple[Answer, ...]:
    """Return whether multicast is possible, and whether UB_SKIPMC is effective on this machine.

    `skipmc` is the variable's value; where it is None (not set), the second answer is for the value 1.
    """
    able, why = possible(machine, needs)
    window = next((window for window in windows if te in window.te), None)
    if window is None:
        unknown = f"nothing is known of transformer-engine {te}"
        return Answer(POSSIBLE, status_of(able), why), Answer(EFFECTIVE, Status.UNKNOWN, unknown)
    used, by = _used(window, machine, needs)
    error = _error(window, skipmc) if used and able is False else None
    return Answer(POSSIBLE, status_of(able), f"{why}; {by}", error), _effective(window, used, skipmc)


def _used(window: Window, machine: Machine, needs: Needs) -> tuple[bool | None, str]:
    """Return whether this Transformer Engine, without UB_SKIPMC, uses multicast or requires it, and the reason."""
    if window.gate is Gate.NEVER:
        return False, "this Transformer Engine never uses it"
    if window.gate is Gate.DEVICE:
        return True, "this Transformer Engine checks the device, and does not start without it"
    if machine.sm is None:
        return None, "this Transformer Engine checks only the SM"
    used = machine.sm in needs.sm
    return used, f"this Transformer Engine checks only the SM and {'uses' if used else 'does not use'} it"


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


def _effective(window: Window, used: bool | None, skipmc: str | None) -> Answer:
    if used is None:
        return Answer(EFFECTIVE, Status.UNKNOWN, "the SM is not known")
    if not used:
        return Answer(EFFECTIVE, Status.NO, "it changes nothing: CUDA IPC is used anyway")
    if window.off is Off.ANY:
        return Answer(EFFECTIVE, Status.YES, "set to any value, 0 too, it makes userbuffers use CUDA IPC")
    useless = skipmc is not None and _error(window, skipmc) is not None
    return Answer(EFFECTIVE, status_of(not useless), "only a number other than 0 makes userbuffers use CUDA IPC")
