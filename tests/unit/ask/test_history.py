"""What upstream's history offers for a traceback, with the indexes that are checked in."""

from __future__ import annotations

from matrix.ask.history import inferred, offered, positions
from matrix.ground.verdicts.outcome import Frame, Raised
from matrix.ground.verdicts.tracebacks import LoggedFrame
from matrix.read.history.index import histories

COMMON = "/env/site-packages/transformer_engine/common/__init__.py"
LOADS = 'return ctypes.CDLL(_get_shared_object_file("core"), mode=ctypes.RTLD_GLOBAL)'


def raised(line: int, source: str = LOADS, file: str = COMMON) -> Raised:
    return Raised("OSError", "undefined symbol", (LoggedFrame(file, line, "_load_core_library", source),))


def test_printed_lines_narrow_the_releases() -> None:
    """Line 300 is in the wheels of 2.6 and 2.7, line 317 in that of 2.4."""
    assert inferred([raised(300)]) == {"transformer-engine": ("2.6", "2.7")}
    assert "2.4" in inferred([raised(317)])["transformer-engine"]


def test_changed_line_is_of_no_release() -> None:
    assert inferred([raised(300, "return load_patched()")]) == {}
    assert inferred([raised(4_000_000)]) == {}
    assert inferred([raised(300, file="/env/mine.py")]) == {}


def test_frame_without_source_goes_by_function() -> None:
    """Numbers of lines alone infer nothing: beside a printed line, the function must stand there."""
    frame = Frame(COMMON, 300, "_load_core_library")
    assert inferred([Raised("OSError", "", (frame,))]) == {}
    printed = LoggedFrame(COMMON, 300, "_load_core_library", LOADS)
    assert inferred([Raised("OSError", "", (frame, printed))]) == {"transformer-engine": ("2.6", "2.7")}


def test_offers_are_later_than_the_release() -> None:
    offer = offered(raised(300), {}, inferred([raised(300)]))
    assert offer is not None
    assert offer.inferred
    assert offer.function == "transformer_engine/common/__init__.py:_load_core_library"
    assert 0 < len(offer.fixes) <= 3
    assert all("2.6" not in fix.commit.releases for fix in offer.fixes)
    assert offer.cause is None or "2.6" in offer.cause.commit.releases


def test_stated_version_goes_before_lines() -> None:
    offer = offered(raised(300), {"transformer-engine": {"2.7.0": None}}, {})
    assert offer is not None
    assert (offer.releases, offer.inferred) == (("2.7",), False)


def test_no_upstream_frame_has_no_history() -> None:
    assert offered(raised(1, file="/job/train.py"), {}, {}) is None
    assert positions([Frame("", 1, "load")]) == []


def test_indexes_state_what_they_know() -> None:
    assert all(history.until >= "2026-08-22" and history.releases for history in histories())
