"""Conditions of scripts: what a shell would run is read, and what it would not is not."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ask.check.files.conditions import Truth, truth_of
from matrix.ask.check.files.dockerfile import read_dockerfile
from matrix.ask.check.files.shell import read_script
from matrix.ground.catalog.stack import ABSENT, UNKNOWN, Value
from tests.profiles import tries


def pins(script: str) -> list[tuple[str, Value]]:
    """Return the packages that a script installs or removes, with their values."""
    return [(pin.name, pin.value) for pin in read_script(script, "a.sh", lambda _: None).pins]


@pytest.mark.parametrize(
    ("words", "truth"),
    [
        ("[ a = a ]", True),
        ("[[ a == b ]]", False),
        ("[ a != b ]", True),
        ("[ ! a = a ]", False),
        ("[[ a == a* ]]", None),  # a pattern
        ("[ $NAME = a ]", None),
        ("[ $# -gt 0 ]", None),
        ("[ $(uname) = Linux ]", None),
        ("[ -n a ]", True),
        ("[ -z a ]", False),
        ("[ -f /etc/passwd ]", None),
        ("[ 10 -gt 9 ]", True),
        ("[ 10 -lt 9 ]", False),
        ("[ a -eq 1 ]", None),
        ("[ a ]", True),
        ("[ ]", False),
        ("[[ a = a", None),  # with && inside of the brackets
        ("true", True),
        ("false", False),
        ("grep -q a b", None),
    ],
)
def test_truth_of_a_test(words: str, truth: Truth) -> None:
    assert truth_of(words.split()) is truth


CONDITIONS = st.sampled_from(
    ['[ "$A" = 1 ]', '[ "$A" != 1 ]', "[[ $B == x ]]", '[ -n "$EMPTY" ]', '[ -z "$EMPTY" ]', "[ $A -ge 1 ]", "true"]
)
INSTALL = st.integers(1, 9).map(lambda minor: f"pip install torch==2.{minor}.0")


def branches(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    parts = st.tuples(CONDITIONS, st.sampled_from(["&&", "||"]), CONDITIONS, inner, inner)
    return st.one_of(
        parts.map(lambda one: f"if {one[0]}; then {one[3]}; else {one[4]}; fi"),
        parts.map(lambda one: f"if {one[0]} {one[1]} {one[2]}\nthen\n{one[3]}\nfi"),
        parts.map(lambda one: f"if {one[0]}; then {one[3]}\nelif {one[2]}; then {one[4]}\nelse {one[3]}; fi"),
        st.tuples(CONDITIONS, st.sampled_from(["&&", "||"]), INSTALL).map(lambda one: " ".join(one)),
        st.tuples(inner, inner).map("\n".join),
    )


@tries(60)
@given(st.recursive(INSTALL, branches, max_leaves=6))
def test_a_script_installs_what_bash_runs(script: str) -> None:
    text = f"A=1\nB=y\nEMPTY=\n{script}\n"
    ran = subprocess.run(
        ["bash", "-c", f"pip() {{ echo $2; }}\n{text}"], capture_output=True, text=True, check=False
    ).stdout.split()
    assert [f"{name}=={value}" for name, value in pins(text)] == ran


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('set -- torch==2.4.0 numpy==1.26.4\npip install "$@"', [("torch", "2.4.0"), ("numpy", "1.26.4")]),
        ("set -- torch==2.4.0\npip install $1", [("torch", "2.4.0")]),
        ("if [ -f a ]; then pip uninstall -y torch; fi", [("torch", UNKNOWN)]),
        ("[ -f a ] && pip uninstall -y torch", [("torch", UNKNOWN)]),
        ("pip uninstall -y torch", [("torch", ABSENT)]),
        ("if [ -d a ]; then pip install torch==2.4.0; fi", [("torch", "2.4.0")]),  # as before: all branches are read
    ],
)
def test_what_is_not_decided_is_not_absent(script: str, expected: list[tuple[str, Value]]) -> None:
    assert pins(script) == expected


@pytest.mark.parametrize(
    ("default", "expected"), [("=1", [("torch", "2.4.1")]), ("=0", []), ("", [("torch", "2.4.1")])]
)
def test_default_of_an_argument_decides(default: str, expected: list[tuple[str, Value]]) -> None:
    text = f'FROM x\nARG X{default}\nRUN if [ "$X" = "1" ]; then pip install torch==2.4.1; fi\n'
    assert [(pin.name, pin.value) for pin in read_dockerfile(text, "Dockerfile", lambda _: None).pins] == expected
