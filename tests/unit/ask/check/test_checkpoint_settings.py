"""Checkpoints: what their files state, read without loading a pickle."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.ask.check.checkpoint_settings import class_names, read_checkpoint
from matrix.ground.errors import MatrixError


class MCoreMetadata:
    """As in megatron.core.dist_checkpointing.strategies.torch."""


class Metadata:
    """As in torch.distributed.checkpoint.metadata."""


class Exploding:
    """A pickle that runs code when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('loaded')",)


def make_checkpoint(folder: Path, *, common: bool = True, metadata: object = None, backend: str = "torch_dist") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": backend, "sharded_backend_version": 1}))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata or Metadata()))
    if common:
        (folder / "common.pt").write_bytes(b"PK")
    return folder


@pytest.mark.parametrize(
    ("common", "metadata", "wrote", "reads"),
    [
        (False, MCoreMetadata(), ">=0.19.0", ">=0.19.0"),
        (True, MCoreMetadata(), ">=0.15.0,<0.19.0", ">=0.15.0"),
        (True, Metadata(), "<0.15.0", ">=0.4.0"),
        (True, Exploding(), "<0.15.0", ">=0.4.0"),
    ],
)
def test_files_state_the_releases(tmp_path: Path, common: bool, metadata: object, wrote: str, reads: str) -> None:
    found = read_checkpoint(make_checkpoint(tmp_path, common=common, metadata=metadata)).to_json()
    assert (found["backend"], found["wrote"], found["reads"]) == ("torch_dist", wrote, reads)


def test_latest_iteration_is_read(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100\n")
    make_checkpoint(tmp_path / "iter_0000100")
    assert read_checkpoint(tmp_path).folder == str(tmp_path / "iter_0000100")


@pytest.mark.parametrize("backend", ["zarr", "torch_dcp"])
def test_other_formats_state_no_release(tmp_path: Path, backend: str) -> None:
    assert "do not state" in str(read_checkpoint(make_checkpoint(tmp_path, backend=backend)))


def test_legacy_checkpoint_states_no_release(tmp_path: Path) -> None:
    (tmp_path / "mp_rank_00").mkdir()
    (tmp_path / "mp_rank_00" / "model_optim_rng.pt").write_bytes(b"")
    assert read_checkpoint(tmp_path).backend == "torch"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sharded_backend": 5}', "[" * 100_000, "\ud800"])
def test_damaged_metadata_raises(tmp_path: Path, text: str) -> None:
    make_checkpoint(tmp_path)
    (tmp_path / "metadata.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(MatrixError, match="not the metadata of a checkpoint"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
@pytest.mark.parametrize("name", [".metadata", "latest_checkpointed_iteration.txt"])
def test_file_that_is_not_regular_raises(tmp_path: Path, name: str, make: Callable[[Path], object]) -> None:
    """Its absence would be a mark of other releases."""
    (make_checkpoint(tmp_path) / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(MatrixError, match=f"{name}: .*can't be read"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["", "missing"])
def test_other_folder_raises(tmp_path: Path, name: str) -> None:
    with pytest.raises(MatrixError, match="not a checkpoint"):
        read_checkpoint(tmp_path / name)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("cut", [None, 120])
def test_class_of_a_pickle_is_found(protocol: int, cut: int | None) -> None:
    pickled = pickle.dumps([MCoreMetadata(), "x" * 500], protocol)
    assert "MCoreMetadata" in set(class_names(pickled[:cut]))


@pytest.mark.parametrize("pickled", [b"", b"\x80", b"garbage", b"\xff" * 100])
def test_damaged_pickle_names_nothing(pickled: bytes) -> None:
    assert list(class_names(pickled)) == []
