"""Write and read an indexed dataset of more than 2 GiB, most of it a hole in a sparse file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TWO_GIB = 2**29  # tokens of 4 bytes
MARK = 17  # the token after the hole; the hole is of zeros


class ReadWrong(AssertionError):
    """The tokens are not those that were written."""


def merge(rank: Rank, *, hole: int = TWO_GIB) -> list[int]:
    """Write an index as add_index does, whose lengths are int32; read the document behind the hole; return it."""
    import numpy
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    prefix = sparse(rank.workdir, numpy.array([hole - 1, 1, 4], dtype=numpy.int32), hole=hole)
    documents = IndexedDataset(str(prefix))
    return checked(documents[2])


def get(rank: Rank, *, hole: int = TWO_GIB) -> list[int]:
    """Read behind the hole of one document, at the int32 offset that a sample index holds; return the tokens."""
    import numpy
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    prefix = sparse(rank.workdir, [hole + 4], hole=hole)
    documents = IndexedDataset(str(prefix))
    return checked(documents.get(0, offset=numpy.int32(hole), length=4))


def sparse(folder: Path, lengths: Any, *, hole: int) -> Path:
    """Write documents of these lengths (tokens), the first `hole` tokens a hole; return the prefix of both files."""
    import numpy
    from megatron.core.datasets.indexed_dataset import _IndexWriter

    prefix = folder / "sparse"
    with _IndexWriter(str(prefix.with_suffix(".idx")), numpy.int32) as index:
        index.write(lengths, None, list(range(len(lengths) + 1)))
    with prefix.with_suffix(".bin").open("wb") as file:
        file.seek(hole * 4)
        file.write(numpy.full(sum(int(length) for length in lengths) - hole, MARK, dtype=numpy.int32).tobytes())
    return prefix


def checked(tokens: Any) -> list[int]:
    """Return the tokens; raise ReadWrong unless they are four marks. Their data set unmaps its file when it ends."""
    if tokens.tolist() != [MARK] * 4:
        raise ReadWrong(f"{tokens.tolist()} instead of {[MARK] * 4}")
    return [int(token) for token in tokens]
