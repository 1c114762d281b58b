"""A campaign: cores one after the other, each with its own cell, comparisons and part of the time.

The cell of a megatron-core is a base of wheels, the core laid over it, and the process that judges points there.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, Final

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.model import Catalog, Wheels
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.catalog.versions import parse
from matrix.ground.errors import MatrixError
from matrix.kit.parity.factors import CARD, CPU, DTYPES, EXACT, FLOAT64, Point, factors
from matrix.prove.execution.engine import neutral, passed
from matrix.prove.execution.engine import settings as cell_variables
from matrix.prove.parity.card import SharedCard
from matrix.prove.parity.points import DEVIATES, EQUAL, REFUSED, Cause, CauseSearch, PointResult, PointResults, Space
from matrix.prove.provision import host, project
from matrix.prove.provision.bases import CELL_SETTINGS, Bases
from matrix.prove.provision.overlays import PRELOADED, Overlays, OverlaySpec
from matrix.read import package_source, scratch
from matrix.read.commands import python_module
from matrix.read.package_source import SourceKind

JudgeIn = Callable[[str, Point, int], PointResult]
MODULE: Final = "matrix.kit.parity.campaign"
IMPORT_S: Final = 120.0  # s for the imports of torch and megatron-core; they take 3 - 20 on a busy machine
RANKS_S: Final = 45.0  # s for the ranks of one point: upstream's collectives wait for ever
CARD_S: Final = 120.0  # the same on a card, where each rank starts CUDA, and may have to import by itself
SLACK_S: Final = 10.0
END_S: Final = 10.0  # s for a process that has nothing left to judge
EMERGING: Final = ("emerging-optimizers==0.3.0", "absl-py==2.3.1")  # Muon
CRASHES: Final = 3  # processes in a row that end without an answer


@dataclass(frozen=True)
class CoreCell:
    """A core and its base. `release` chooses factors, of a commit the next release. `identity` is what the core is.

    `overlay` is laid over a base; a `card` has its own, and the host's packages.
    """

    name: str
    release: str
    identity: str
    base: str
    python: Path
    overlay: Path = Path()
    card: SharedCard | None = None

    @contextmanager
    def judge(self, log: Path, say: Callable[[str], None]) -> Iterator[PointProcess]:
        """Give the judge of this cell; its process starts with the first point. Raises MatrixError without the card."""
        words = python_module(self.python, MODULE, folder=project.folder())
        site, words = passed(os.environ, self.python), ["nice", "-n", "10", *words]  # others come first
        own = nullcontext({"PYTHONPATH": str(self.overlay)})
        if self.card:
            site, words = neutral(os.environ), python_module(self.python, MODULE, CARD, folder=project.folder())
        with self.card.held(say) if self.card else own as variables:
            environment = {**site, **CELL_SETTINGS, **cell_variables(), **variables}
            with PointProcess(words, environment, log, CARD_S if self.card else RANKS_S) as process:
                yield process


def base_of(catalog: Catalog, release: str) -> Wheels:
    """Return the newest base that a release may be planned on; those of the night first, which are made already."""
    newest_first = reversed(catalog.standard)
    for base in sorted(newest_first, key=lambda base: not base.night):
        if not catalog.excluded(catalog.cell(base.id, {MCORE: release}).stack):
            return base
    raise MatrixError("no base of wheels for this megatron-core", got=release, expected="a released megatron-core")


def core_cell(
    catalog: Catalog, source: str, say: Callable[[str], None], te: str = "", device: str = CPU, *, mps: bool = False
) -> CoreCell:
    """Return the cell of a release, a wheel, a revision or a folder; its base and overlay are made where missing.

    `te` is a source of Transformer Engine, which is laid there, too. `mps`: see Placement.

    Raises MatrixError when they can't be.
    """
    texts = {MCORE: source} | ({TE: te} if te else {})
    resolve = host.load_configuration().resolve
    sources = tuple(package_source.parse(resolve(text), package) for package, text in texts.items())
    contents = [package_source.inspect(row) for row in sources]
    release = parse(contents[0].version).base_version  # a candidate's own version is in no range of its release
    identity = " ".join(row.identity for row in contents)
    if device == CARD:
        unreleased = {row.package: texts[row.package] for row in sources if row.kind is not SourceKind.PYPI}
        card = SharedCard.of({row.source.package: row.version for row in contents}, unreleased, mps=mps)
        python = Path(sys.executable)
        return CoreCell(source, release, f"{identity} {card.identity}", card.installation.base, python, card=card)
    if factors()["optimizer"].supported("muon", release):
        sources += tuple(map(package_source.pinned, EMERGING))
        identity = " ".join((identity, *EMERGING))
    base = base_of(catalog, release)
    bases = Bases(catalog, say)
    bases.ready([base.id])
    environment = bases.provide(base.id)
    spec = OverlaySpec(
        sources,
        environment.minor,
        {name: environment.packages[name] for name in PRELOADED if name in environment.packages},
        environment.path,
    )
    overlay = Overlays(default_root()).provide(spec)
    assert environment.path
    return CoreCell(source, release, identity, base.id, environment.path, overlay.path)


@dataclass
class PointProcess:
    """Judges points in one cell. `command` and `environment` start the process, whose stderr goes to `log`.

    A point whose process ends, or does not answer, has the outcome `crashed` or `timeout`; the next one gets another
    process.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    deadline: float = RANKS_S
    _process: subprocess.Popen[str] | None = field(default=None, init=False)
    _answered: bool = field(default=False, init=False)
    _crashes: int = field(default=0, init=False)

    def __enter__(self) -> PointProcess:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._process and self._process.stdin and not kind:  # it then ends its ranks before itself
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        self.end()

    def judge(self, point: Point, seed: int, dtype: str = FLOAT64) -> PointResult:
        """Return the comparison of a point. Raises MatrixError when no process of this cell answers."""
        started = time.monotonic()
        process = self._process or self._start()
        task = {"point": dict(point.chosen), "seed": seed, "deadline": self.deadline, "dtype": dtype}
        runs = (1 + len(point.legs)) * 2  # with the reference, and again in fresh ranks
        limit = runs * self.deadline + SLACK_S + (0 if self._answered else IMPORT_S)
        try:
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            line = _line(process.stdout, limit)
        except BrokenPipeError:
            line = ""
        if line and line.endswith("\n"):
            self._answered, self._crashes = True, 0
            return PointResult.read(json.loads(line))
        late = line is None
        self.end()
        if not late:
            self._crashes += 1
        if self._crashes >= CRASHES or (not self._answered and not late):
            raise MatrixError(
                "the process that judges points ends without an answer", where=str(self.log), got=str(point)
            )
        outcome, text = ("timeout", f"no answer within {limit:.0f} s") if late else ("crashed", "the process ended")
        return PointResult(point, seed, outcome, text=text, seconds=time.monotonic() - started, dtype=dtype)

    def _start(self) -> subprocess.Popen[str]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                env={**self.environment, **scratch.environment()},
                start_new_session=True,  # so that a Ctrl-C ends this process first
            )
        self._answered = False
        return self._process

    def end(self) -> None:
        """End the process and its ranks, which follow it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        # Popen's context closes the pipes and reaps the process.
        with suppress(ProcessLookupError, BrokenPipeError), process:
            os.killpg(process.pid, signal.SIGKILL)


def _line(stream: IO[str], seconds: float) -> str | None:
    """Return the next line, "" at the end of the stream, None when nothing comes within the time."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(seconds) else None


@dataclass(frozen=True)
class CoreResult:
    """What a campaign has of one core: the causes, the points judged now and those equal, and what is not covered.

    `asked` are the comparisons of the layouts that the user named, `problem` is why there is no further one. `te`,
    `device`: see core_cell.
    """

    core: str
    base: str
    causes: tuple[Cause, ...] = ()
    judged: int = 0
    equal: int = 0
    uncovered: int = 0
    problem: str = ""
    asked: tuple[PointResult, ...] = ()
    seconds: float = 0.0
    te: str = ""
    device: str = CPU

    @property
    def deviates(self) -> bool:
        """Whether a number is not that of one rank, beyond what is only suspected or known."""
        breaks = any(cause.deviates and cause.certainty.is_break for cause in self.causes)
        return breaks or any(comparison.outcome == DEVIATES for comparison in self.asked)

    @property
    def decided(self) -> bool:
        """Whether at least one comparison came to an end."""
        return self.equal > 0 or any(comparison.outcome in (EQUAL, DEVIATES) for comparison in self.asked)


@dataclass
class ParityRun:
    """Judges points in cores. `say` receives progress, `clock` is in seconds. `unaided`: the catalog is not asked.

    `covers` and `twice`: see CauseSearch; `given`: see Space. `te`, `device`, `mps`: see core_cell.
    """

    catalog: Catalog
    folder: Path
    seed: int
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    unaided: bool = False
    covers: int = 1
    twice: bool = False
    dtype: str = FLOAT64
    given: Point = field(default_factory=Point)
    te: str = ""
    device: str = CPU
    mps: bool = False

    @contextmanager
    def judging(self, source: str) -> Iterator[tuple[CoreCell, JudgeIn]]:
        """Give the cell of a core, and what judges a point there in a dtype, or knows its comparison from before."""
        log = self.folder / f"{Path(source).name}.log"
        cell = core_cell(self.catalog, source, self.say, self.te, self.device, mps=self.mps)
        stores = {
            dtype: PointResults(self.folder, cell.release, f"{cell.base} {cell.identity} {dtype}")
            for dtype in DTYPES[self.device]
        }
        with cell.judge(log, self.say) as process:

            def judge(dtype: str, point: Point, seed: int) -> PointResult:
                comparison = stores[dtype].get(point, seed)
                if comparison is None:
                    comparison = process.judge(point, seed, dtype)
                    stores[dtype].add(comparison)
                    self.say(f"{source}  {comparison.kind[:70]:30}  {point}  [{comparison.seconds:.1f} s]")
                return comparison

            yield cell, judge

    def asked(self, source: str, points: Sequence[Point]) -> CoreResult:
        """Return the comparisons of some layouts in a core; one that the release does not have is refused."""
        started, result = self.clock(), CoreResult(source, "", te=self.te, device=self.device)
        rows: list[PointResult] = []
        try:
            with self.judging(source) as (cell, judge):
                result = replace(result, base=cell.base)
                for point in points:
                    lacking = PointResult(point, self.seed, REFUSED, text="this release has no such option")
                    rows.append(judge(self.dtype, point, self.seed) if point.supported(cell.release) else lacking)
        except MatrixError as error:
            result = replace(result, problem=error.brief)
        return replace(result, judged=len(rows), asked=tuple(rows), seconds=self.clock() - started)

    def searched(self, source: str, seconds: float) -> CoreResult:
        """Search a core for this time; what is found until a Ctrl-C is in the comparisons."""
        started, result = self.clock(), CoreResult(source, "", te=self.te, device=self.device)
        causes: list[Cause] = []
        try:
            with self.judging(source) as (cell, judge):
                catalog = cell.card.installation.catalog if cell.card else self.catalog
                known = {} if self.unaided else known_layouts(catalog, cell)
                avoided, known = (list(known), {}) if self.te else ([], known)  # stated of Megatron-LM's own layers
                space, over = Space(cell.release, avoided, self.given), lambda: self.clock() - started > seconds
                exact = None if self.dtype == EXACT[self.device] else partial(judge, EXACT[self.device])
                judged = partial(judge, self.dtype)
                search = CauseSearch(judged, space, self.seed, over, known, self.covers, self.twice, exact)
                for cause in search:
                    self.say(f"{source}  {cause.certainty.value}: {cause.point}")
                    causes.append(cause)
            result = replace(
                result, base=cell.base, judged=search.judged, equal=search.equal, uncovered=search.uncovered
            )
        except MatrixError as error:
            result = replace(result, problem=error.brief)
        return replace(result, causes=tuple(causes), seconds=self.clock() - started)


def known_layouts(catalog: Catalog, cell: CoreCell) -> dict[Point, str]:
    """Return the layouts that the catalog states to deviate in a cell, each with its failure."""
    stack = catalog.cell(cell.base, {MCORE: cell.release}).stack
    layouts = {
        Point.parse(layout): failure.id
        for failure in catalog.failures
        if failure.expectation(stack) is Expectation.BROKEN
        for way in failure.reached_by
        if way.matches(stack)
        for layout in way.layouts
    }
    return {point: id for point, id in layouts.items() if point.supported(cell.release)}


def first_and_last(point: Point, results: Sequence[CoreResult]) -> str:
    """Return the spans of the cores in which a layout deviates: "0.12.0 .. 0.18.2"."""

    def deviates(result: CoreResult) -> bool:
        return any(comparison.point == point and comparison.outcome == DEVIATES for comparison in result.asked)

    spans = [[result.core for result in group] for found, group in groupby(results, deviates) if found]
    return ", ".join(span[0] if len(span) == 1 else f"{span[0]} .. {span[-1]}" for span in spans)
