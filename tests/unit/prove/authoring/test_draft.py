"""The draft of an entry from a log."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.kinds import kind_table
from matrix.ground.catalog.loading import failure_of, read_shared
from matrix.ground.catalog.schema import toml_table
from matrix.ground.catalog.versions import ReleaseBoundary
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.log_match import Reading, match
from matrix.prove.authoring.draft import api_change, change_of, entry_text, generalised
from tests.founding import QUANTIZED_CALL
from tests.unit.catalogs import real

TODAY = date(2026, 2, 3)
HEAD = "Traceback (most recent call last):\n"
CORE = '  File "/usr/lib/python3/dist-packages/megatron/core/model.py", line 7, in forward\n    x\n'
TORCH = '  File "/usr/lib/python3/dist-packages/torch/nn/modules.py", line 7, in call\n    x\n'
ERROR = "RuntimeError: bucket 13 at 0x7f3a holds 4.5 of /ckpt/iter_10/x items\n"
CRASH = """\
[node1:00042] *** Process received signal ***
[node1:00042] Signal: Segmentation fault (11)
[node1:00042] [ 0] /x/libtransformer_engine.so(_ZN18transformer_engine4gemmEv+0x1a)[0x7f]
[node1:00042] *** End of error message ***
"""


def read(log: str) -> Reading:
    return match([log], real().failures, kind_table())


def drafted(log: str) -> dict[str, Any]:
    return toml_table(entry_text("my-own", read(log), TODAY), "failure.toml")


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("size 4, rank 13", r"^size [\d.:e+-]+, rank [\d.:e+-]+$"),
        ("at 0xAf09 of float8", "^at 0x[0-9a-fA-F]+ of float8$"),
        ("no /a/b-1.pt: gone", r"^no [\w.~+/-]+: gone$"),
        ("expected (a*b)", r"^expected \(a\*b\)$"),
        ("first\nsecond", "^first"),
        ("cannot import name 'a' from 'b'", "^cannot import name 'a' from 'b'"),
        ("cannot import name 'a' from 'b' (/x/b.py)", "^cannot import name 'a' from 'b'"),
        ("cannot import name 'a' from 'b' (unknown location)", "^cannot import name 'a' from 'b'"),
        ("password=hunter2secret", "^password=.{1,500}"),
        ("x" * 300, "^" + "x" * 200),
    ],
)
def test_volatile_parts_stand_for_any(message: str, pattern: str) -> None:
    assert generalised(message) == pattern


@given(st.text(min_size=1, max_size=60, alphabet=st.characters(codec="ascii", exclude_characters="\r")))
def test_pattern_matches_its_own_message(message: str) -> None:
    pattern = generalised(message)
    if message.isprintable():
        assert re.search(pattern, message)


@pytest.mark.parametrize(
    ("frames", "key", "place"),
    [
        (CORE, "frame", "megatron/core/model.py:forward"),
        (CORE + TORCH, "through", "megatron/core/model.py:forward"),
        (TORCH, "frame", "torch/nn/modules.py:call"),
    ],
)
def test_frame_is_the_deepest_of_the_stack(frames: str, key: str, place: str) -> None:
    (signature,) = drafted(HEAD + frames + ERROR)["signature"]
    assert (signature["exception"], signature[key]) == ("RuntimeError", place)


def test_exception_comes_before_a_crash() -> None:
    (signature,) = drafted(CRASH + HEAD + CORE + ERROR)["signature"]
    assert signature["exception"] == "RuntimeError"


def test_unusable_places_are_left_out() -> None:
    (signature,) = drafted(HEAD + '  File "<string>", line 7, in f\n' + ERROR)["signature"]
    assert not {"frame", "through"} & signature.keys()
    template = CRASH.replace("_ZN18transformer_engine4gemmEv", "a::gemm<int>")
    assert "stack" not in drafted(template)["signature"][0]


def test_draft_is_an_entry_that_names_its_log(tmp_path: Path) -> None:
    log = HEAD + CORE + TORCH + ERROR
    entry = failure_of(drafted(log), tmp_path / "my_own" / "failure.toml", read_shared())
    other_run = log.replace("13", "7").replace("iter_10", "iter_2000").replace("0x7f3a", "0x1")
    (sighting,) = match([other_run], [entry]).known
    assert (sighting.failure.id, sighting.certain) == ("my-own", True)
    assert match([log.replace("bucket", "tensor")], [entry]).known == ()


def test_topic_is_that_of_the_kind() -> None:
    assert drafted(HEAD + CORE + "RuntimeError: CUDA error: device-side assert triggered\n")["topic"] == "data"


def test_versions_in_the_log_are_stated() -> None:
    assert "# The log names megatron-core 0.15.0.\n" in entry_text(
        "my-own", read(f"megatron-core==0.15.0\n{HEAD}{CORE}{ERROR}"), TODAY
    )


def test_crash_is_compared_by_its_signal_and_function() -> None:
    (signature,) = drafted(CRASH)["signature"]
    assert (signature["signal"], signature["stack"]) == ("SIGSEGV", "transformer_engine::gemm")


UNQUANTIZED = (
    "AttributeError: module 'transformer_engine.pytorch.module.base' has no attribute 'UserBufferQuantizationMode'"
)


@pytest.mark.parametrize(
    ("log", "part"),
    [
        ("", "no exception and no crash"),
        (f"{HEAD}{CORE}{UNQUANTIZED}\n", QUANTIZED_CALL),
    ],
)
def test_log_without_a_new_fault_is_refused(log: str, part: str) -> None:
    with pytest.raises(MatrixError, match="no fault in this log is new") as refused:
        entry_text("my-own", read(log), TODAY)
    assert part in str(refused.value)


MISSING = "ImportError: cannot import name 'get_tensor_model_parallel_group_if_none' from 'megatron.core.utils'\n"


def test_missing_name_drafts_all_but_the_words() -> None:
    text = f'{HEAD}  File "/x/site-packages/mbridge/utils.py", line 8, in <module>\n    x\n{MISSING}'
    log = match([text], (), kind_table())
    text = entry_text("my-own", log, TODAY, change=change_of(log))
    entry = toml_table(text, "failure.toml")
    (signature,) = entry["signature"]
    assert signature.keys() == {"name", "exception", "message"}  # another program raises it, too
    assert (entry["boundary"], entry["night"]["mcore"]) == ({"mcore": {"fixed": "0.13.0"}}, "sides")
    assert [rule["mcore"] for rule in (*entry["affected"], *entry["works"])] == ["broken", "fixed"]
    assert [line.partition(" = ")[0] for line in text.splitlines() if "TODO" in line] == [
        "title",
        "first_seen",
        "references",
        "axes",
        "symptom",
        "cause",
        "fix",
        "when",
        "text",
    ]


HELPER = {"module": "megatron.core.utils", "name": "get_tensor_model_parallel_group_if_none"}
ENUM = {"owner": "ModelType", "attribute": "encoder_and_decoder"}
ARGUMENT = {"callable": "GatedDeltaNet.__init__", "keyword": "cp_comm_type"}


@pytest.mark.parametrize(
    ("groups", "boundary", "parts", "fact"),
    [
        (HELPER, ReleaseBoundary(fixed="0.13.0"), ("broken", "fixed"), "0.13.0 and later; missing in 0.4.0 - 0.12.3"),
        (ENUM, ReleaseBoundary(breaks="0.17.0"), ("before", "broken"), "0.4.0 - 0.16.1; missing in 0.17.0 and later"),
        (
            ARGUMENT,
            ReleaseBoundary(breaks="0.16.0", fixed="0.19.0"),
            ("broken", "fixed"),
            "GatedDeltaNet.__init__(cp_comm_type=) is in megatron-core 0.19.0 and later; missing in 0.16.0 - 0.18.2",
        ),
    ],
)
def test_boundary_is_that_of_the_recorded_apis(
    groups: dict[str, str], boundary: ReleaseBoundary, parts: tuple[str, ...], fact: str
) -> None:
    change = api_change(groups)
    assert change is not None
    assert (change.boundary, change.parts) == (boundary, parts)
    assert fact in change.fact


@pytest.mark.parametrize(
    ("groups", "script"),
    [
        (
            HELPER,
            "from megatron.core.utils import get_tensor_model_parallel_group_if_none  # noqa: F401",
        ),
        (
            ENUM,
            "from megatron.core.enums import ModelType\n\n"
            'return {"encoder_and_decoder": str(ModelType.encoder_and_decoder)}',
        ),
        (ARGUMENT, ""),
    ],
)
def test_script_needs_what_is_missing(groups: dict[str, str], script: str) -> None:
    change = api_change(groups)
    assert change is not None
    assert change.script == script


@pytest.mark.parametrize(
    "groups",
    [
        {},
        {"module": "torch.utils", "name": "nothing"},
        {"module": "megatron.core.utils", "name": "in_no_release"},
        {"module": "megatron.core.utils", "name": "divide"},
        {"owner": "NoSuchClass", "attribute": "value"},
        {"callable": "f", "keyword": "no_such_keyword"},
    ],
)
def test_no_change_without_a_release_on_each_side(groups: dict[str, str]) -> None:
    assert api_change(groups) is None
