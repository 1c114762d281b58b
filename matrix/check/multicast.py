"""CUDA Multicast under userbuffers: is it possible, does a Transformer Engine go by it, does UB_SKIPMC help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from matrix.catalog.versions import Range
from matrix.check.answer import Answer, Word, known

FAILURE: Final = "ub-multicast"  # the catalog entry
POSSIBLE: Final = "CUDA Multicast is possible"
EFFECTIVE: Final = "UB_SKIPMC is effective"


class Gate(str, Enum):
    """What a Transformer Engine goes by before it uses multicast."""

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
    """How the Transformer Engines of a range go about it; `error` is what comes where it is used and can't be."""

    te: Range
    gate: Gate
    off: Off
    error: str
    source: str


@dataclass(frozen=True)
class Device:
    """A GPU and its drivers, as far as they are known.

    `driver` is the kernel's ("470.161.03"), `cuda` what the user-mode driver offers ("12.4"), `sm` the compute
    capability ("9.0"), `says` the device attribute "multicast supported".
    """

    driver: str | None = None
    cuda: str | None = None
    sm: str | None = None
    says: bool | None = None


def possible(device: Device, needs: Needs) -> tuple[bool | None, str]:
    """Say whether the device can use multicast, and why; None where too little is known."""
    if device.says is not None:
        return device.says, f"the driver says so of the device (SM {device.sm or 'unknown'})"
    for name, got, wanted in (
        ("SM", device.sm, needs.sm),
        ("driver", device.driver, needs.driver),
        ("the user-mode driver's CUDA", device.cuda, needs.cuda),
    ):
        if got is not None and got not in wanted:
            return False, f"needs {name} {wanted.text}, and this is {got}"
    if device.sm is None or device.driver is None:
        return None, "the GPU or its driver is not known"
    return None, f"SM {device.sm} and driver {device.driver} have it where the GPUs are on an NVSwitch"


def answers(te: str, device: Device, skipmc: str | None, needs: Needs, windows: Sequence[Window]) -> tuple[Answer, ...]:
    """Return whether multicast is possible, and whether UB_SKIPMC is effective here.

    `skipmc` is its value, None if it is not set; what is answered is then what setting it to 1 would do.
    """
    able, why = possible(device, needs)
    window = next((window for window in windows if te in window.te), None)
    if window is None:
        unknown = f"nothing is known of transformer-engine {te}"
        return Answer(POSSIBLE, known(able), why), Answer(EFFECTIVE, Word.UNKNOWN, unknown)
    wanted, by = _wanted(window, device, needs)
    error = _error(window, skipmc) if wanted and able is False else ""
    return (
        Answer(POSSIBLE, known(able), f"{why}; {by}", breaks=error, failure=FAILURE if error else ""),
        _effective(window, wanted, skipmc),
    )


def _wanted(window: Window, device: Device, needs: Needs) -> tuple[bool | None, str]:
    """Say whether this Transformer Engine uses multicast here, or refuses to start without it; UB_SKIPMC aside."""
    if window.gate is Gate.NEVER:
        return False, "this Transformer Engine never uses it"
    if window.gate is Gate.DEVICE:
        return True, "this Transformer Engine asks the device, and does not start without it"
    if device.sm is None:
        return None, "this Transformer Engine goes by the SM alone"
    wanted = device.sm in needs.sm
    return wanted, f"this Transformer Engine goes by the SM alone and {'uses' if wanted else 'does not use'} it"


def _error(window: Window, skipmc: str | None) -> str:
    """Return what comes where multicast is wanted and can't be, "" where UB_SKIPMC averts it."""
    if skipmc is None:
        return window.error
    if window.off is Off.ANY:
        return ""
    try:
        return "" if int(skipmc) else window.error
    except ValueError:
        return f"ValueError: invalid literal for int() with base 10: {skipmc!r} (UB_SKIPMC)"


def _effective(window: Window, wanted: bool | None, skipmc: str | None) -> Answer:
    if wanted is None:
        return Answer(EFFECTIVE, Word.UNKNOWN, "the SM is not known")
    if not wanted:
        return Answer(EFFECTIVE, Word.NO, "it changes nothing: CUDA IPC is used here anyway")
    if window.off is Off.ANY:
        return Answer(EFFECTIVE, Word.YES, "set to anything, 0 too, it makes userbuffers go by CUDA IPC")
    on = skipmc is not None and bool(_error(window, skipmc))
    return Answer(EFFECTIVE, known(not on), "only a number other than 0 makes userbuffers go by CUDA IPC")
