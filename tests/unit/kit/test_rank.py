"""The argument of a rank's body travels to its process as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.errors import MatrixError
from matrix.kit.rank import LackError, Rank

NAMES = st.text("ab/.-", max_size=6)
RANKS = st.builds(
    Rank,
    st.integers(0, 7),
    st.integers(1, 8),
    st.sampled_from(["cpu", "cuda"]),
    NAMES,
    st.builds(Path, NAMES),
    stand_ins=st.dictionaries(st.sampled_from(["packages", "missing"]), st.lists(NAMES)),
    clones=st.dictionaries(NAMES, NAMES),
    backend=st.sampled_from(["gloo", "nccl"]),
    checkpoint=st.builds(Path, NAMES),
    overlays=st.lists(NAMES).map(tuple),
    hidden=st.lists(NAMES).map(tuple),
)


@given(RANKS)
def test_a_rank_is_read_back_from_json(rank: Rank) -> None:
    assert decode(Rank, json.loads(json.dumps(encode(rank)))) == rank


def test_a_rank_by_itself_has_no_stand_in() -> None:
    rank = decode(Rank, {"rank": 0, "world_size": 1, "device": "cpu", "init_method": "", "workdir": "/x"})
    assert (rank.stand_ins, rank.clones, rank.overlays, rank.hidden) == ({}, {}, (), ())
    assert (rank.backend, rank.checkpoint) == ("gloo", Path())


def test_an_unknown_field_of_a_rank_raises() -> None:
    with pytest.raises(MatrixError, match="unknown key"):
        decode(Rank, {**encode(Rank(0, 1, "cpu", "", Path())), "nodes": 1})


def test_a_lack_is_no_error_of_the_matrix() -> None:
    """A body raises it; MatrixError would be an error of the run."""
    assert not issubclass(LackError, MatrixError)
