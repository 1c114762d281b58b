"""The offload arguments (Megatron-LM#1018, #1041, #988): every cell of the table, from the recorded surfaces.

"ok": the call binds, each argument to the parameter it means. "fail": TypeError. "shifted": it binds, but arguments
land on other parameters than meant; a count of arguments would not detect that.
"""

import itertools
import operator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.read.api import recording
from matrix.read.api.api import ResolvedPath
from matrix.read.api.comparison import find
from matrix.read.api.finding import FindingKind
from matrix.read.api.recording import MCORE, TE

CALLEE = "transformer_engine.pytorch.cpu_offload.get_cpu_offload_context"
WORDS = {FindingKind.DEFINITE: "fail", FindingKind.MISBOUND: "shifted", FindingKind.SILENTLY_OFF: "off"}
calls, surface = cache(recording.load_calls), cache(recording.load_surface)


def between(package: str, first: str, last: str) -> list[str]:
    return [v for v in recording.released(package) if Version(first) <= Version(v) <= Version(last)]


COLUMNS = {  # (recorded surface, version it reports)
    "1.3 - 1.8.0": [(v, v) for v in between(TE, "1.3", "1.8.0")],
    "1.8.0+37280ec": [("1.8.0+37280ec", "1.8.0+37280ec")],
    "1.9.0.dev0 / 1.9.0": [("1.9.0.dev0+f9dd37f", "1.9.0.dev0"), ("1.9.0", "1.9.0")],
    "1.9.0+e79d915": [("1.9.0+e79d915", "1.9.0+e79d915")],
    "1.10.0.dev0 before c8c05f3": [("1.10.0.dev0+54c1cfa", v) for v in ("1.10.0.dev0+54c1cfa", "1.10.0.dev0")],
    "1.10 - 2.4": [(v, v) for v in between(TE, "1.10", "2.4.0")],
    "2.5 - 2.9": [(v, v) for v in between(TE, "2.5", "2.9.0")],
}
ROWS = {
    "0.5 - 0.8": (between(MCORE, "0.5", "0.8.0"), "ok ok ok ok ok shifted shifted"),
    "main, 24.09-alpha.rc0": (
        ["c5a497a7eb", "094d66b488", "4ff9e66ec8", "24.09-alpha.rc0"], "ok fail fail fail fail ok ok",
    ),
    "the write-up's guard, > 1.9.0": (["547e1d27a2"], "ok ok ok fail fail ok ok"),
    "0.9 - 0.16.1": (["98b43c91d0", *between(MCORE, "0.9.0", "0.16.1")], "ok ok ok ok fail ok ok"),
}  # fmt: skip
CELLS = [
    pytest.param(consumers, column, expected, id=f"megatron-core {row} on {name}")
    for row, (consumers, line) in ROWS.items()
    for (name, column), expected in zip(COLUMNS.items(), line.split(), strict=True)
]


def outcome(mcore: str, offered: str, version: str) -> str:
    found = {f.kind for f in find(calls(mcore), surface(offered), version) if f.callee == CALLEE}
    assert len(found) <= 1
    return WORDS[found.pop()] if found else "ok"


@pytest.mark.parametrize(("consumers", "column", "expected"), CELLS)
def test_every_cell_has_its_measured_outcome(
    consumers: list[str], column: list[tuple[str, str]], expected: str
) -> None:
    """At its corners: of the releases in between, the night's level contract judges those at each change."""
    corners = itertools.product({consumers[0], consumers[-1]}, {column[0], column[-1]})
    assert {outcome(mcore, offered, version) for mcore, (offered, version) in corners} == {expected}


def test_offloading_is_silently_off_before_te_1_3() -> None:
    assert {"off"} == {outcome("0.9.0", version, version) for version in ("1.0.0", "1.2.1")}


def test_reported_stack_gives_upstreams_error() -> None:
    [found] = [f for f in find(calls("094d66b488"), surface("1.8.0+37280ec")) if f.callee == CALLEE]
    assert found.message == "get_cpu_offload_context() takes from 0 to 4 positional arguments but 5 were given"
    assert found.guard == "TE > 1.8.0"
    assert str(found.call_site).startswith("megatron/core/transformer/custom_layers/transformer_engine.py:")
    assert found.call_site.function == "get_cpu_offload_context"


GUARDS = [("c5a497a7eb", ">", "1.8.0"), ("547e1d27a2", ">", "1.9.0"), ("0.9.0", ">=", "1.10.0.dev0")]
# All of these have GroupedLinear, which these Megatrons import for TE >= 1.9, so the adapter can be imported.
OFFERED = ["1.9.0.dev0+f9dd37f", "1.9.0", "1.10.0.dev0+54c1cfa", "1.10.0.dev0+c8c05f3", "1.10.0", "1.13.0"]
OPS = {">": operator.gt, ">=": operator.ge}


@given(
    st.sampled_from(GUARDS),
    st.sampled_from(OFFERED),
    st.sampled_from(["1.7.0", "1.8.0", "1.9.0", "1.9.1", "1.10.0", "2.0.0"]),
    st.sampled_from(["", ".post1", ".dev0", "rc1", "+37280ec", ".dev0+f9dd37f", ".post2+e79d915"]),
)
def test_call_fails_where_branch_and_signature_disagree(
    guard: tuple[str, str, str], offered: str, base: str, suffix: str
) -> None:
    """For any version around a boundary: PEP 440 chooses the branch, the branch passes four or five arguments."""
    mcore, op, boundary = guard
    version = base + suffix
    passes = 5 if OPS[op](Version(version), Version(boundary)) else 4
    found = surface(offered).lookup(CALLEE.replace(".get_", ":get_"))
    assert isinstance(found, ResolvedPath)
    [(signature, _)] = found.callables
    takes = 4 if len(signature.named) == 4 else 5
    expected = "ok" if passes == takes else "fail" if passes > takes else "shifted"
    assert outcome(mcore, offered, version) == expected
