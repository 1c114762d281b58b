"""The commits that a search probes first, by what the failure names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.failure import ContractCall, Signature
from matrix.prove.bisection.axes import Clone
from matrix.prove.bisection.commits import names_in, no_suspects, of_call, of_signatures
from tests.unit.prove.bisection.repositories import clone


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"message": r"__init__\(\) got an unexpected keyword argument 'use_norm'"}, ["use_norm"]),
        ({"message": r"the state_dict of ShardedTensor \d+ is empty"}, ["state_dict", "ShardedTensor"]),
        ({"message": "sizes differ", "frame": "planner.py:create_plan"}, ["create_plan"]),
        ({"exit_code": 3, "log": "no such option"}, []),
    ],
)
def test_names_of_a_signature(given: dict[str, Any], names: list[str]) -> None:
    """Those in quotes are the most specific; words of a sentence are no names."""
    assert names_in([Signature("learned", **given)]) == names  # type: ignore[arg-type]


HISTORY = [
    ("root", [], {"megatron/a.py": "def attention(use_norm): pass\n", "megatron/b.py": "1"}),
    ("other", ["root"], {"megatron/b.py": "2"}),
    ("near", ["other"], {"megatron/a.py": "def attention(use_norm): return 1\n"}),
    ("rename", ["near"], {"megatron/a.py": "def attention(norm): return 1\n"}),
    ("side", ["other"], {"megatron/b.py": "3"}),
    ("merge", ["rename", "side"], {"megatron/b.py": "3"}),
    ("end", ["merge"], {"docs/use_norm.md": "use_norm"}),
]


def suspected(path: Path, *, call: bool = False) -> list[str]:
    with Clone(str(clone(path, HISTORY)), "megatron-core") as opened:
        history = opened.between(opened.commit("root").id, opened.commit("end").id)
        signature = Signature("learned", message="an unexpected keyword argument 'use_norm'")  # type: ignore[arg-type]
        build = of_call(ContractCall("use_norm"), opened) if call else of_signatures([signature], opened)  # type: ignore[arg-type]
        return [history[place].subject for place in sorted(build(history))]


def test_commit_that_changes_a_name_is_suspected(tmp_path: Path) -> None:
    """Not one that changes other lines of its file, nor a merge with the marks of one side."""
    assert suspected(tmp_path / "c") == ["rename"]


def test_commit_near_a_callee_is_suspected(tmp_path: Path) -> None:
    """A call may change in any line of a file that names its callee."""
    assert suspected(tmp_path / "c", call=True) == ["near", "rename"]


def test_signature_without_names_suspects_nothing(tmp_path: Path) -> None:
    with Clone(str(clone(tmp_path / "c", HISTORY)), "megatron-core") as opened:
        assert of_signatures([Signature("learned", exit_code=3)], opened) is no_suspects  # type: ignore[arg-type]


ADDED = [
    ("root", [], {"megatron/core/a.py": "1"}),
    ("other", ["root"], {"megatron/core/a.py": "2"}),
    ("add", ["other"], {"megatron/core/fp4_utils.py": "1"}),
    ("edit", ["add"], {"megatron/core/fp4_utils.py": "2"}),
]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("python x.py\nimport megatron.core.fp4_utils", ["add"]),
        ("test -e megatron/core/fp4_utils.py", ["add"]),
        ("from megatron.core import fp4_utils", []),
        ("import megatron.core.fp4_utilsx", []),
    ],
)
def test_file_that_a_command_names_is_suspected(tmp_path: Path, command: str, names: list[str]) -> None:
    """The commit that added it, not one that edits it."""
    with Clone(str(clone(tmp_path / "c", ADDED)), "megatron-core") as opened:
        history = opened.between(opened.commit("root").id, opened.commit("edit").id)
        build = of_signatures([Signature("learned", exit_code=3)], opened, command)  # type: ignore[arg-type]
        assert [history[place].subject for place in sorted(build(history))] == names
