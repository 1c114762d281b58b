"""What a rank reports is text of another process: whatever it is, the outcome is one that can be judged and stored."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.failure import Expectation
from matrix.ground.verdicts.blame import classify
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.outcome import Outcome, RankEnd
from matrix.prove.execution.ranks.rank_process import parse_report
from tests.profiles import tries
from tests.unit.catalogs import failure

ENTRY = failure()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


def almost(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return objects in which any field may be something else."""
    return st.fixed_dictionaries({name: st.one_of(good, good, SCALARS) for name, good in fields.items()})


FRAMES = almost(file=st.text(max_size=9), line=st.integers(), function=st.text(max_size=9))
CHAINS = st.lists(almost(type=st.just("TypeError"), message=st.text(), frames=st.lists(FRAMES, max_size=2)), max_size=2)
REPORTS = st.one_of(almost(raised=CHAINS), almost(value=JSON), almost(lacks=st.text()), JSON)


@tries(50)
@given(content=REPORTS)
@example(content={"raised": [{"type": 5, "message": None}]})
def test_any_report_gives_an_outcome(content: Any) -> None:
    report = parse_report(json.dumps(content).encode())
    if report is None:
        return
    end = RankEnd(0, 0, report.chain, report.returned, value=report.value)
    outcome = classify([end], logs={0: ""}, traces={}, deadline_s=1.0, timed_out=False, oom_kills=0)
    judge(ENTRY, Expectation.BROKEN, outcome, (ENTRY,))
    stored = json.loads(json.dumps(encode(outcome)))
    assert json.dumps(encode(decode(Outcome, stored))) == json.dumps(stored)
