"""What a cell's process answered of points, kept append-only: a second search judges only what changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from matrix import PACKAGE
from matrix.ground.catalog.regular_file import UnreadableError, read_regular_text
from matrix.ground.errors import MatrixError
from matrix.kit.parity.deviations import Deviation
from matrix.kit.parity.factors import Point
from matrix.prove.store.paths import make_folder, unwritable

KIT: Final = PACKAGE / "kit"
EQUAL: Final = "equal"
DEVIATES: Final = "deviates"
REFUSED: Final = "refused"


@dataclass(frozen=True)
class PointResult:
    """One answer. `outcome` is one of matrix.kit.parity.campaign's, or `crashed`.

    `largest` is the largest relative difference.
    """

    point: Point
    seed: int
    outcome: str
    deviations: tuple[Deviation, ...] = ()
    text: str = ""
    trace: str = ""
    largest: float = 0.0
    seconds: float = 0.0

    @property
    def kind(self) -> str:
        """What a smaller point must show as well: the outcome, with the first quantity or the class of the error."""
        first = self.deviations[0].quantity if self.deviations else re.sub(r"\d+", "N", self.text)[:60]
        return f"{self.outcome} {first}".strip()

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> PointResult:
        """Return the comparison of a row of JSON. Raises MatrixError, KeyError or TypeError for another one."""
        point = Point.of(row["point"])
        deviations = tuple(
            Deviation(**{**deviation, "ranks": tuple(deviation["ranks"])}) for deviation in row.get("deviations", ())
        )
        names = {field.name for field in fields(cls)}
        return cls(**{**{name: row[name] for name in row if name in names}, "point": point, "deviations": deviations})

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as `read` takes them."""
        return {**asdict(self), "point": dict(self.point.chosen)}


class PointResults:
    """The comparisons of one release, in a file named after it and the content of what judges."""

    def __init__(self, folder: Path, release: str, base: str) -> None:
        digest = hashlib.sha256(f"{content()} {release} {base}".encode()).hexdigest()[:10]
        self.path = folder / f"{Path(release).name}-{digest}.jsonl"
        self._known = {(row.point, row.seed): row for row in self._rows()}

    def _rows(self) -> Iterator[PointResult]:
        try:
            lines = read_regular_text(self.path).splitlines()
        except UnreadableError:
            return
        for line in lines:
            try:
                yield PointResult.read(json.loads(line))
            except (MatrixError, ValueError, KeyError, TypeError):  # cut by a kill, or of a factor that is gone
                continue

    def get(self, point: Point, seed: int) -> PointResult | None:
        """Return what is known of a point."""
        return self._known.get((point, seed))

    def add(self, comparison: PointResult) -> None:
        """Write one line at the end: whole lines of several writers do not mix."""
        self._known[comparison.point, comparison.seed] = comparison
        make_folder(self.path.parent, exist_ok=True)
        line = json.dumps(comparison.to_json()) + "\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, b"\n" * torn(self.path) + line.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def __len__(self) -> int:
        return len(self._known)


def torn(path: Path) -> bool:
    """Return whether the file ends within a line."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


@cache
def content() -> str:
    """Return a digest of the kit, whose code judges."""
    digest = hashlib.sha256()
    for path in sorted(
        [*(KIT / "parity").iterdir(), KIT / "cpu_device.py", KIT / "te_extension.py", KIT / "absent_packages.py"]
    ):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
