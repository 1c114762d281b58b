"""The arguments with which Megatron-LM's training starts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from matrix.kit import pretrain as PRETRAIN
from matrix.kit.rank import LackError, Rank

CORE = "0.8.0"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
MAKEFILE = "LIBEXT = $(shell no-such-config)\ndefault:\n\ttouch helpers$(LIBEXT)\n"


@pytest.fixture(autouse=True)
def installed_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the version of the installed megatron-core."""
    monkeypatch.setattr(PRETRAIN, "version", lambda name: CORE)
    monkeypatch.setenv("MAKEFLAGS", "")


def rank(workdir: Path, **clones: str) -> Rank:
    return Rank(0, 2, "cuda", "file:///store", workdir, clones={"megatron-lm": clones["clone"]} if clones else {})


@pytest.fixture
def clone(tmp_path: Path) -> str:
    """Return a clone whose pretrain_gpt.py writes its arguments to a file, only at the tag of the release."""
    folder = tmp_path / "clone"
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    script = "import json, os, pathlib, sys, types\npathlib.Path(os.environ['SEEN']).write_text(json.dumps(sys.argv))\n"
    script += "get_args = lambda: types.SimpleNamespace(consumed_train_samples=2)\n"
    for text, message in ((script, "release"), ("raise SystemExit('main')\n", "main")):
        (folder / "pretrain_gpt.py").write_text(text)
        (folder / PRETRAIN.HELPERS).mkdir(parents=True, exist_ok=True)
        (folder / PRETRAIN.HELPERS / "Makefile").write_text(MAKEFILE)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", message], check=True)
    subprocess.run([*git, "tag", f"core_v{CORE}", "HEAD~1"], check=True)
    return str(folder)


def test_training_runs_at_the_release_of_the_cell(clone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of the case come after those of every case, so that they replace them."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    assert PRETRAIN.train(rank(tmp_path, clone=clone), "--num-workers", "0", sequence=65536) == {"samples": 2}
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen[0].endswith("pretrain_gpt.py")
    assert seen[seen.index("--seq-length") + 1] == seen[seen.index("--max-position-embeddings") + 1] == "65536"
    assert "\n".join(seen).rindex("--num-workers\n0") > "\n".join(seen).index("--num-workers\n1")
    assert [
        seen[seen.index(name) + 1] for name in ("--vocab-size", "--eval-iters", "--eval-interval", "--num-workers")
    ] == [
        "8191",
        "0",
        "1000",
        "1",
    ]


def test_ranks_share_one_tree_with_compiled_helpers(
    clone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 waits for rank 0: with a tree of its own it would import helpers that nothing compiles."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with ThreadPoolExecutor() as threads:
        second = threads.submit(PRETRAIN.tree_of, replace(rank(tmp_path, clone=clone), rank=1))
        first = PRETRAIN.tree_of(rank(tmp_path, clone=clone))
        assert second.result() == first
    assert (first / PRETRAIN.HELPERS / f"helpers{SUFFIX}").is_file()
    assert PRETRAIN.tree_of(rank(tmp_path, clone=clone)) == first  # as train_checked and train ask for it


def test_helpers_that_do_not_compile_are_a_lack(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("default:\n\tno-such-compiler\n")
    with pytest.raises(LackError, match=r"can't be compiled: make.* Error 127"):
        PRETRAIN.compile_helpers(tmp_path)


def test_pretraining_needs_a_clone(tmp_path: Path) -> None:
    with pytest.raises(LackError, match="MEGATRIX_MEGATRON_LM"):
        PRETRAIN.train(rank(tmp_path))


def test_pretraining_needs_transformer_engine(clone: str, tmp_path: Path) -> None:
    with pytest.raises(LackError, match="Transformer Engine"):
        PRETRAIN.train(rank(tmp_path, clone=clone))


@pytest.mark.parametrize(
    ("norms", "problem"),
    [
        ([1.0], ""),
        ([1.0, 2.0], ""),
        ([0.0, 2.0], ""),
        ([1.0, 101.0], "the gradient norm of iteration 2 is 101 times that of the one before"),
        ([1.0, float("nan")], "the gradient norm of iteration 2 is nan"),
    ],
)
def test_norm_that_is_wrong(norms: list[float], problem: str) -> None:
    assert PRETRAIN.norm_problem(norms, 100.0) == problem


def test_norms_of_a_training_are_watched(clone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """train_step is replaced before pretrain_gpt.py runs; its norm is the sixth of its results."""
    training = SimpleNamespace(train_step=lambda: ({}, 0, False, False, 0, float("nan"), None))
    monkeypatch.setattr(PRETRAIN, "tree_of", lambda rank: tmp_path)
    monkeypatch.setattr(PRETRAIN, "importlib", SimpleNamespace(import_module=lambda name: training))
    monkeypatch.setattr(PRETRAIN, "train", lambda rank, *options, sequence: training.train_step())
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(FloatingPointError, match="iteration 1 is nan"):
        PRETRAIN.train_checked(rank(tmp_path, clone=clone), options="--fp8-format e4m3")
