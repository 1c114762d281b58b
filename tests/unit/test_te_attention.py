"""What Transformer Engine's sources leave out of cuDNN's attention, and the rules of the entry."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.stack import SM, TE, Stack
from matrix.ground.catalog.versions import parse
from tests.founding import ATTENTION_OFF
from tests.te_attention import TABLE, lists_in
from tests.unit.catalogs import real

RELEASES = read_toml(TABLE)["release"]


def test_lists_are_read_from_the_source() -> None:
    source = """
      bool flag_arb = false;
      if ((cudnn_runtime_version != 90107) && (sm_arch_ >= 80)) {
        flag_arb = true;
      }
      if (backend == SOME && sm_arch_ == 120) {
        if (cudnn_runtime_version < 90302) {
    """
    assert lists_in(source) == (["9.1.7"], "9.3.2")
    assert lists_in("bool flag_arb = true;") == ([], "")


@pytest.mark.parametrize("release", RELEASES, ids=[release["version"] for release in RELEASES])
@pytest.mark.parametrize("cudnn", ["9.8.0", "9.18.0", "9.18.1", "9.20.0"])
def test_rules_agree_with_the_lists(release: dict[str, str], cudnn: str) -> None:
    stack = Stack({TE: release["version"], SM: "12.0", "cudnn": cudnn})
    limit = release["sm120"]
    listed = Expectation.BROKEN if limit and parse(cudnn) < parse(limit) else Expectation.WORKS
    found = real().failure(ATTENTION_OFF).expectation(stack)
    assert found is (listed if limit else Expectation.UNKNOWN)
