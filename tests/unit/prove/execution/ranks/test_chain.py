"""An exception as plain values."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.verdicts.outcome import Raised
from matrix.prove.execution.ranks.rank_main import EXCEPTIONS, FRAMES, MESSAGE, chain_of


def caught(function: Any, *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def types(error: BaseException) -> list[str]:
    return [raised.type for raised in chain_of(error)]


def fail(message: str) -> None:
    raise ValueError(message)


def fail_from_cause() -> None:
    try:
        fail("root")
    except ValueError as error:
        raise RuntimeError("end") from error


def fail_in_handler() -> None:
    try:
        fail("root")
    except ValueError:
        raise RuntimeError("end")  # noqa: B904  (what is tested)


def fail_from_none() -> None:
    try:
        fail("hidden")
    except ValueError:
        raise RuntimeError("end") from None


class CheckpointException(BaseException):
    """A copy of torch.distributed.checkpoint.api's: a BaseException with the failures of the ranks."""

    def __init__(self, failures: dict[int, Any]) -> None:
        super().__init__("ranks", failures)
        self.failures = failures


@pytest.mark.parametrize("function", [fail_from_cause, fail_in_handler])
def test_root_cause_comes_first(function: Any) -> None:
    assert types(caught(function)) == ["ValueError", "RuntimeError"]


def test_suppressed_context_is_left_out() -> None:
    assert types(caught(fail_from_none)) == ["RuntimeError"]


def test_frames_run_from_outermost_to_innermost() -> None:
    (raised,) = chain_of(caught(fail, "x"))
    assert [frame.function for frame in raised.frames] == ["caught", "fail"]
    assert raised.frames[-1].file == __file__
    assert raised.frames[-1].line > 0


def test_failures_precede_the_exception_that_holds_them() -> None:
    stack = traceback.StackSummary.from_list([("default_planner.py", 389, "create_default_global_save_plan", "assert")])
    error = CheckpointException({1: (KeyError("second"), None), 0: (AssertionError("first"), stack)})
    assert types(error) == ["AssertionError", "KeyError", "CheckpointException"]


def test_failure_keeps_the_stack_of_its_rank() -> None:
    stack = traceback.StackSummary.from_list([("default_planner.py", 389, "create_default_global_save_plan", "assert")])
    first = chain_of(CheckpointException({0: (AssertionError(""), stack)}))[0]
    assert [(frame.file, frame.line, frame.function) for frame in first.frames] == [
        ("default_planner.py", 389, "create_default_global_save_plan")
    ]


@pytest.mark.parametrize("failures", [3, {0: "text"}, {0: (1, 2)}, {}])
def test_unrelated_failures_attribute_is_ignored(failures: Any) -> None:
    assert types(CheckpointException(failures)) == ["CheckpointException"]


def test_cycle_of_causes_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert len(chain_of(one)) == 2


def test_failure_that_contains_its_holder_ends() -> None:
    error = CheckpointException({})
    error.failures[0] = (error, None)
    assert types(error) == ["CheckpointException"]


def test_long_chain_keeps_both_ends() -> None:
    error = ValueError("0")
    for number in range(1, 5000):
        error, error.__context__ = ValueError(str(number)), error
    chain = chain_of(error)
    assert (len(chain), chain[0].message, chain[-1].message) == (EXCEPTIONS, "0", "4999")


def test_deep_stack_keeps_both_ends() -> None:
    def deeper(levels: int) -> None:
        deeper(levels - 1) if levels else fail("deep")

    frames = chain_of(caught(deeper, 300))[0].frames
    assert (len(frames), frames[0].function, frames[-1].function) == (FRAMES, "caught", "fail")


def test_long_message_keeps_both_ends() -> None:
    message = chain_of(ValueError("a" + "x" * 10**6 + "z"))[0].message
    assert len(message) < MESSAGE + 10
    assert message[0] + message[-1] == "az"


def test_exception_with_a_failing_str_is_reported() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise KeyError("no")

    assert [(raised.type, raised.message) for raised in chain_of(Silent())] == [
        ("Silent", "<its message can't be formatted: KeyError>")
    ]


def test_chain_round_trips_through_json() -> None:
    chain = chain_of(caught(fail_from_cause))
    assert decode(tuple[Raised, ...], json.loads(json.dumps(encode(chain)))) == chain
