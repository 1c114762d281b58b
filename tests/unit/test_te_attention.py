"""What Transformer Engine's sources leave out of its attention, and the rules of the entries."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.stack import SM, TE, Stack
from matrix.ground.catalog.versions import parse
from tests.founding import ATTENTION_OFF, NO_BACKEND, PADDING_UNFUSED
from tests.te_attention import TABLE, lists_in, padding_in
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


def test_padding_is_read_from_the_selection() -> None:
    source = """
    # Filter: QKV layout
    if qkv_format == "thd":
        use_unfused_attention = False
        if pad_between_seqs:
            use_flash_attention_2 = False
        if device_compute_capability == (12, 0):
            use_fused_attention = False

    # Filter: Dropout
    use_flash_attention = False
    """
    assert padding_in(source) == ["flash 2", "unfused"]
    assert padding_in(source.replace("        use_unfused_attention = False\n", "")) == ["flash 2"]
    assert padding_in("") == []


@pytest.mark.parametrize("release", RELEASES, ids=[release["version"] for release in RELEASES])
def test_padding_rules_agree_with_the_sources(release: dict[str, str]) -> None:
    """Below the first SM with packed sequences in cuDNN, the unfused backend refuses padding or reads wrong tokens."""
    assert release["packed_sm"] == "9.0"
    older, refuses = Stack({TE: release["version"], SM: "8.0"}), "unfused" in release["padding_off"]
    broken, works = Expectation.BROKEN, Expectation.WORKS
    assert real().failure(NO_BACKEND).expectation(older) is (broken if refuses else works)
    assert real().failure(PADDING_UNFUSED).expectation(older) is (works if refuses else broken)
    if parse(release["version"]) >= parse("2.11"):  # before it the unfused backend takes no packed sequences
        equal = real().failure(NO_BACKEND).expectation(older, "equal")
        assert equal is (broken if release["padding_by_tensor"] else works)
