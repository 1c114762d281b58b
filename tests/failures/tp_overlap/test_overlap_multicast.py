"""Multicast and UB_SKIPMC for the known drivers, devices and Transformer Engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.folders import load_module
from matrix.ground.catalog.stack import DRIVER, SM, TE, Stack
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.signature_match import owner
from matrix.kit.preflight import Cuda, Gpu, Machine
from tests.founding import HARDWARE
from tests.unit.catalogs import real

multicast = load_module(Path(__file__).parent, "multicast")
facts = load_module(Path(__file__).parent, "overlap").facts


def machine(
    driver: str | None = None, cuda: str | None = None, sm: str | None = None, multicast: bool | None = None
) -> Machine:
    return Machine(driver, cuda=Cuda(cuda, gpus=(Gpu(sm=sm, multicast=multicast),)))


A800 = machine(driver="470.161.03", cuda="12.4", sm="8.0")
NEW_A800 = machine(driver="580.82", cuda="13.0", sm="8.0")
OLD_H100 = machine(driver="525.85", cuda="12.4", sm="9.0")
H100 = machine(driver="535.129.03", cuda="12.4", sm="9.0", multicast=True)
LONE_H100 = machine(driver="535.129.03", cuda="12.4", sm="9.0", multicast=False)  # no NVSwitch
NOT_SUPPORTED = "CUDA Error: operation not supported, at cuMulticastGetGranularity"
REFUSED = "CUDA device, driver and/or toolkit version does not support comm+GEMM overlap with CUDA Multicast"


@pytest.mark.parametrize(
    ("device", "able"),
    [
        (H100, True), (LONE_H100, False), (OLD_H100, False), (A800, False),
        (NEW_A800, False),  # on SM80 no driver brings it
        (machine(driver="535.129.03", sm="9.0"), None),  # whether there is an NVSwitch is not known
        (machine(driver="530.30", cuda="12.1", sm="9.0"), None),
        (machine(driver="530.30", cuda="12.0", sm="9.0"), False),  # the user-mode driver counts as well
        (machine(driver="535.129.03"), None), (machine(sm="9.0"), None), (Machine(), None),
        (machine(sm="8.0"), False), (machine(driver="470"), False),
    ],
)  # fmt: skip
def test_where_multicast_is_possible(device: Machine, able: bool | None) -> None:
    assert able is multicast.possible(device, facts().multicast)[0]


@pytest.mark.parametrize(
    ("te", "device", "skipmc", "breaks", "effective"),
    [
        # before 1.6 nothing uses it
        ("1.5.0", OLD_H100, None, "", "no"), ("1.5.0", A800, "1", "", "no"),
        # 1.6 - 1.12 check only the SM: on SM80 UB_SKIPMC is a no-op
        ("1.6.0", A800, None, "", "no"), ("1.8.0", A800, "1", "", "no"), ("1.9.0", A800, None, "", "no"),
        ("1.12.0", NEW_A800, "0", "", "no"), ("1.9.0.dev0+f9dd37f", A800, None, "", "no"),
        # on SM90 with an old driver they fail in the driver, unless UB_SKIPMC has any value
        ("1.6.0", OLD_H100, None, NOT_SUPPORTED, "yes"), ("1.12.0", OLD_H100, None, NOT_SUPPORTED, "yes"),
        ("1.9.0", OLD_H100, "1", "", "yes"), ("1.9.0", OLD_H100, "0", "", "yes"),
        ("1.9.0", LONE_H100, None, NOT_SUPPORTED, "yes"), ("1.9.0", H100, None, "", "yes"),
        # from 1.13 on they check the device: SM80 must set UB_SKIPMC to a number other than 0
        ("1.13.0", A800, None, REFUSED, "yes"), ("2.17.1", NEW_A800, None, REFUSED, "yes"),
        ("1.13.0", A800, "1", "", "yes"), ("1.13.0", A800, "0", REFUSED, "no"),
        ("1.13.0", OLD_H100, None, REFUSED, "yes"), ("2.17.1", OLD_H100, "1", "", "yes"),
        ("2.17.1", H100, None, "", "yes"),
        ("2.17.1", A800, "yes", "ValueError: invalid literal for int() with base 10: 'yes' (UB_SKIPMC)", "no"),
        # unknown facts give no error
        ("1.9.0", Machine(), None, "", "unknown"), ("1.13.0.dev0", A800, None, "", "unknown"),
        ("2.17.1", machine(driver="535.129.03", sm="9.0"), None, "", "yes"),
    ],
)  # fmt: skip
def test_errors_and_ub_skipmc_by_transformer_engine(
    te: str, device: Machine, skipmc: str | None, breaks: str, effective: str
) -> None:
    there, skips = multicast.answers(te, device, skipmc, facts().multicast, facts().window)
    assert (breaks, effective) == (str(there.error or ""), skips.status.value)


@pytest.mark.parametrize("te", ["1.5.0", "1.6.0", "1.9.0", "1.12.0", "1.13.0", "2.17.1"])
@pytest.mark.parametrize("driver", ["470.161.03", "525.105.17", "530.30.02", "580.82.07"])
@pytest.mark.parametrize("sm", ["8.0", "9.0", "10.0"])
def test_the_catalog_agrees_with_multicast(te: str, driver: str, sm: str) -> None:
    stack = Stack({TE: te, DRIVER: driver, SM: sm})
    there, _ = multicast.answers(te, machine(driver, sm=sm), None, facts().multicast, facts().window)
    expected = Expectation.BROKEN if there.error else Expectation.WORKS
    assert expected is real().failure(HARDWARE).expectation(stack)


@pytest.mark.parametrize("te", ["1.9.0", "1.13.0"])
def test_the_catalog_recognises_the_error(te: str) -> None:
    there, _ = multicast.answers(te, OLD_H100, None, facts().multicast, facts().window)
    raised = Raised(there.error.type, there.error.message)
    found = owner(real().failures, Outcome(OutcomeKind.RAISED, chain=(raised,)))
    assert found
    assert found.id == HARDWARE
