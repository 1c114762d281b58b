"""What the reproductions of the mask decide by themselves: the law, and what they start Megatron-LM with."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.kit.rank import LackError, Rank
from tests.failures.long_context import LawBroken, law
from tests.failures.long_context_data import forked
from tests.failures.long_context_pretrain import pretrain

LENGTHS = (4096, 8192, 16384)


def test_a_law_that_holds_predicts_128k() -> None:
    told = law({length: 8 * length**2 for length in LENGTHS})
    assert told == {
        "points": [[length, 8 * length**2] for length in LENGTHS],
        "factor": 8.0,
        "predicted": {"131072": 2**37},
    }


@given(st.lists(st.floats(0.981, 1.019), min_size=3, max_size=3))
def test_measurements_within_2_percent_hold(noise: list[float]) -> None:
    told = law({length: round(8 * length**2 * part) for length, part in zip(LENGTHS, noise, strict=True)})
    assert told["predicted"]["131072"] == pytest.approx(2**37, rel=0.02)


@given(st.sampled_from(LENGTHS), st.one_of(st.floats(0.1, 0.979), st.floats(1.021, 4)))
def test_one_measurement_off_the_law_breaks_it(odd: int, part: float) -> None:
    """A release that makes a smaller mask, or another copy of it, is no longer explained by this."""
    with pytest.raises(LawBroken, match=rf"the peak at {odd} tokens is .* not 8 \* S\^2"):
        law({length: round(8 * length**2 * (part if length == odd else 1)) for length in LENGTHS})


def test_what_a_forked_process_raises_is_raised() -> None:
    with pytest.raises(LawBroken, match="by a child"):
        forked(lambda: (_ for _ in ()).throw(LawBroken("by a child")))


def test_a_forked_process_that_dies_is_noticed() -> None:
    with pytest.raises(EOFError):
        forked(lambda: os._exit(1))


def rank(workdir: Path) -> Rank:
    return Rank(0, 2, "cuda", "file:///store", workdir)


@pytest.fixture
def clone(tmp_path: Path) -> str:
    """Return a clone whose pretrain_gpt.py tells, at revision "release" and there only, what it was given."""
    folder = tmp_path / "clone"
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    script = "import json, os, pathlib, sys\npathlib.Path(os.environ['TOLD']).write_text(json.dumps(sys.argv))\n"
    for text, message in ((script, "release"), ("raise SystemExit('main')\n", "main")):
        (folder / "pretrain_gpt.py").write_text(text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", message], check=True)
    subprocess.run([*git, "tag", "release", "HEAD~1"], check=True)
    return str(folder)


def test_pretraining_is_the_reports_command(clone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the asked revision, context parallel over all ranks, without a mask if so asked."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    pretrain(rank(tmp_path), clone=clone, revision="release", sequence=65536, mask=False)
    told = json.loads((tmp_path / "told").read_text())
    assert told[0].endswith("pretrain_gpt.py")
    assert told[told.index("--seq-length") + 1] == told[told.index("--max-position-embeddings") + 1] == "65536"
    assert told[told.index("--context-parallel-size") + 1] == "2"
    assert "--no-create-attention-mask-in-dataloader" in told


def test_without_a_clone_pretraining_is_lacking(tmp_path: Path) -> None:
    with pytest.raises(LackError, match="MEGATRIX_MEGATRON_LM"):
        pretrain(rank(tmp_path), clone="", revision="core_v0.8.0", sequence=1, mask=True)


def test_without_transformer_engine_pretraining_is_lacking(clone: str, tmp_path: Path) -> None:
    with pytest.raises(LackError, match="Transformer Engine"):
        pretrain(rank(tmp_path), clone=clone, revision="release", sequence=1, mask=True)
