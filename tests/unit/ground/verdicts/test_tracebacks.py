"""The exceptions in the lines of one rank."""

from __future__ import annotations

import pytest

from matrix.ground.verdicts.tracebacks import FOREIGN_LINES, LINES, LoggedException, LoggedFrame, Tracebacks

HEAD = "Traceback (most recent call last):"
FRAME = '  File "a.py", line 3, in save'


def read(*lines: str, types: tuple[str, ...] = ()) -> list[LoggedException]:
    reader = Tracebacks(types)
    logged = [found for number, line in enumerate(lines, 1) for found in reader.take(number, line)]
    return [*logged, *reader.close()]


def test_traceback_has_type_message_and_frames() -> None:
    (logged,) = read("starting", HEAD, FRAME, "    save()", "torch.MyError: no file")
    assert (logged.line, logged.alone) == (5, False)
    assert (logged.raised.type, logged.raised.message) == ("MyError", "no file")
    assert logged.raised.frames == (LoggedFrame("a.py", 3, "save"),)
    assert vars(logged.raised.frames[0])["source"] == "save()"


@pytest.mark.parametrize(
    "lines",
    [
        ['File "a.py", line 3, in save', "save()"],  # a markup removed the indentation
        ['File "a.py", line 3, in save', "", "save()", ""],
        [FRAME, "", "    save()"],
        [FRAME.ljust(90), "    save()".ljust(90)],  # a terminal of 90 columns
        [FRAME, "2026-03-18 05:25:02", "", "pod-4f1b", "    save()", "    ^^^^^^"],  # a viewer of logs
    ],
)
def test_source_line_is_found_below_its_frame(lines: list[str]) -> None:
    (logged,) = read(HEAD, *lines, "TypeError: no")
    assert (logged.raised.frames[0].function, vars(logged.raised.frames[0])["source"]) == ("save", "save()")


def test_lines_between_frames_count_from_the_last() -> None:
    between = ["pod-4f1b"] * (FOREIGN_LINES // 2)
    (logged,) = read(HEAD, *[line for _ in range(4) for line in (FRAME, *between)], "KeyError: 'a'")
    assert len(logged.raised.frames) == 4


def test_linked_exceptions_share_a_chain() -> None:
    link = "The above exception was the direct cause of the following exception:"
    first, second, other = read(
        HEAD, FRAME, "KeyError: 'a'", "", link, "", HEAD, FRAME, "ValueError: b", HEAD, FRAME, "OSError: c"
    )
    assert first.chain == second.chain != other.chain


def test_known_continuations_belong_to_the_message() -> None:
    (logged,) = read(HEAD, FRAME, "RuntimeError: Error(s) in loading state_dict:", "\tMissing key(s): a", "next line")
    assert logged.raised.message == "Error(s) in loading state_dict:\n\tMissing key(s): a"


def test_last_line_alone_may_be_a_quote() -> None:
    (logged,) = read("node1 | rank0: ValueError: no", "ValueError: no file")
    assert (logged.line, logged.alone, logged.raised.frames) == (2, True, ())


@pytest.mark.parametrize("behind", [[], ["and then nothing"]])
def test_error_above_its_frame_has_it(behind: list[str]) -> None:
    """People quote the error first, and its place below."""
    logged = read("ValueError: no file", FRAME, *behind)[-1]
    assert (logged.line, logged.alone, logged.raised.frames) == (1, False, (LoggedFrame("a.py", 3, "save"),))


def test_frames_may_be_of_the_next_error() -> None:
    assert [logged.alone for logged in read("ValueError: no file", HEAD, FRAME)] == [True]
    errors = read("ValueError: no file", FRAME, "KeyError: 'a'")
    assert [(logged.raised.type, len(logged.raised.frames)) for logged in errors] == [
        ("ValueError", 0),
        ("KeyError", 1),
    ]


def test_type_of_unusual_name_must_be_known() -> None:
    assert read("Unpicklable: a module") == []
    assert len(read("Unpicklable: a module", types=("Unpicklable",))) == 1


def test_log_level_of_another_writer_is_no_exception() -> None:
    (logged,) = read(HEAD, FRAME, "INFO: saving", "KeyError: 'a'")
    assert logged.raised.type == "KeyError"


def test_traceback_without_an_end_is_given_up() -> None:
    assert read(HEAD, FRAME, *["    more"] * (LINES + 1), "KeyError: 'a'")[0].raised.frames == ()


def test_innermost_frame_is_open_until_the_exception() -> None:
    reader = Tracebacks()
    for number, line in enumerate((HEAD, FRAME), 1):
        list(reader.take(number, line))
    assert reader.innermost == LoggedFrame("a.py", 3, "save")
    list(reader.take(3, "KeyError: 'a'"))
    assert reader.innermost is None
