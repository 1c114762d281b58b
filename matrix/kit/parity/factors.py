"""The factors of parity (factors.toml), a point of their product, and what makes a point possible."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.versions import Range
from matrix.ground.errors import MatrixError, closest

TABLE: Final = Path(__file__).with_name("factors.toml")
MOST_RANKS: Final = 4
GLOBAL_BATCH: Final = 8  # samples of a step
STEPS: Final = 2
FLOAT64: Final = "float64"
CPU: Final = "cpu"
CARD: Final = "cuda"
# What a device computes in, the usual first; and what rounds least there, which decides what another may have rounded.
DTYPES: Final[Mapping[str, tuple[str, ...]]] = {CPU: (FLOAT64, "bfloat16", "mixed"), CARD: ("bfloat16", "float32")}
EXACT: Final[Mapping[str, str]] = {CPU: FLOAT64, CARD: "float32"}
# The layouts that write what another one resumes. Sequence parallel: some models are wrong without it.
WRITERS: Final[Mapping[str, Mapping[str, Value]]] = {
    "one": {},
    "tp": {"tp": 2, "sequence_parallel": True},
    "pp": {"pp": 2},
    "ep": {"dp": 4, "ep": 4},
}
EVERY: Final = Range(">=0")
Value = bool | int | str
SWITCH: Final = {True: "on", False: "off"}


class Side(str, Enum):
    """Where a factor holds."""

    MODEL = "model"  # on both sides of a comparison
    LAYOUT = "layout"  # not in the reference


@dataclass(frozen=True)
class Factor:
    """One thing that a point chooses; the head of the table describes the fields."""

    name: str
    kind: Side
    values: tuple[Value, ...]
    mcore: Range = EVERY
    since: Mapping[str, Range] = field(default_factory=dict)
    option: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    given: bool = False

    @property
    def default(self) -> Value:
        """The simplest value."""
        return self.values[0]

    def read(self, text: str) -> Value:
        """Return the value of a text. Raises MatrixError."""
        for value in self.values:
            if shown(value) == text:
                return value
        expected = ", ".join(map(shown, self.values))
        raise MatrixError(f"no such value of {self.name}", got=text, expected=expected)

    def arguments(self, value: Value) -> str:
        """Return the arguments of Megatron-LM's command line that choose the value; "" where it has none."""
        plain = "" if value == self.default else self.option.format(shown(value))
        return self.options.get(shown(value), plain)

    def supported(self, value: Value, release: str) -> bool:
        """Return whether a megatron-core release has the value."""
        return value == self.default or (release in self.mcore and release in self.since.get(shown(value), EVERY))


@dataclass(frozen=True)
class BatchBound:
    """Where a loss is not invariant under the size of micro-batches, with the reason."""

    needs: Mapping[str, tuple[Value, ...]]
    reason: str


@dataclass(frozen=True)
class FactorTable:
    """The file."""

    factor: tuple[Factor, ...]
    bound: tuple[BatchBound, ...]


def shown(value: Value) -> str:
    """Return the text of a value: on and off for a switch."""
    return SWITCH[value] if isinstance(value, bool) else str(value)


@cache
def factors() -> Mapping[str, Factor]:
    """Return the factors by name, in the order of the table: models first."""
    return {factor.name: factor for factor in _table().factor}


@cache
def _table() -> FactorTable:
    return decode(FactorTable, read_toml(TABLE), str(TABLE))


@dataclass(frozen=True)
class Point(Mapping[str, Value]):
    """A value of every factor; `chosen` has those that are not the default, in the order of the table."""

    chosen: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Point:
        """Return the point with these values, all others being the default. Raises MatrixError for others."""
        for name, value in values.items():
            if name not in factors():
                raise MatrixError(
                    "no such factor", got=name, expected=", ".join(factors()), fix=closest(name, factors())
                )
            factors()[name].read(shown(value))
        rows = ((name, values.get(name, factor.default), factor.default) for name, factor in factors().items())
        return cls(tuple((name, value) for name, value, default in rows if value != default))

    @classmethod
    def parse(cls, text: str) -> Point:
        """Return the point of a text such as "tp=2 sequence_parallel=on". Raises MatrixError."""
        values: dict[str, Value] = {}
        for part in re.split(r"[\s,]+", text.strip()) if text.strip() else []:
            name, equals, value = part.partition("=")
            factor = factors().get(name)
            if not equals or factor is None:
                raise MatrixError(
                    "not a choice of a layout",
                    got=part,
                    expected="tp=2 sequence_parallel=on",
                    fix=closest(name, factors()),
                )
            values[name] = factor.read(value)
        return cls.of(values)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    @cached_property
    def _values(self) -> Mapping[str, Value]:
        return {name: factor.default for name, factor in factors().items()} | dict(self.chosen)

    def __iter__(self) -> Iterator[str]:
        return iter(factors())

    def __len__(self) -> int:
        return len(factors())

    def __str__(self) -> str:
        return " ".join(f"{name}={shown(value)}" for name, value in self.chosen) or "layers=2"

    def count(self, name: str) -> int:
        """Return the number that a factor such as tp has."""
        return int(self[name])

    def changed(self, **values: Value) -> Point:
        """Return the point with other values of some factors."""
        return Point.of({**dict(self.chosen), **values})

    @property
    def ranks(self) -> int:
        """The number of processes."""
        return self.count("tp") * self.count("pp") * self.count("cp") * self.count("dp")

    @property
    def micro_batch(self) -> int:
        """Samples of a micro-batch; GLOBAL_BATCH / (dp * micro_batches)."""
        return max(1, GLOBAL_BATCH // (self.count("dp") * self.count("micro_batches")))

    @property
    def etp(self) -> int:
        """Expert tensor parallel ranks."""
        return self.count("tp") if self["etp"] == "tp" else self.count("etp")

    def reference(self) -> Point:
        """Return the same model on one rank; with micro-batches of the same size where a loss depends on that."""
        model = Point.of({name: value for name, value in self.chosen if factors()[name].kind is Side.MODEL})
        bound = any(self._has(row.needs) for row in _table().bound)
        return model.changed(micro_batches=GLOBAL_BATCH // self.micro_batch) if bound else model

    @property
    def writer(self) -> Point:
        """The point whose checkpoint `resume` reads; the point itself without one."""
        kind = str(self["resume"])
        if kind not in WRITERS:
            return self.changed(dp=2 if self["dp"] == 1 else 1) if kind == "dp" else self
        options = {name: self[name] for name in ("resume", "distributed_optimizer")}
        writer = self.reference().changed(**options, **WRITERS[kind])
        return writer.changed(micro_batches=max(1, writer.count("micro_batches") // writer.count("dp")))

    @property
    def legs(self) -> tuple[Leg, ...]:
        """What trains, one after the other."""
        if self["resume"] == "none":
            return (Leg(self, range(STEPS)),)
        reshards = bool(self["reshardable"]) or any(self[name] != self.writer[name] for name in ("tp", "pp"))
        return Leg(self.writer, range(1), reshards), Leg(self, range(1, STEPS), reshards)

    def arguments(self) -> list[str]:
        """Return the arguments of Megatron-LM's command line that choose this model and layout."""
        texts = [factor.arguments(self[name]) for name, factor in factors().items() if self._has(factor.needs)]
        texts.append(f"--micro-batch-size {self.micro_batch} --global-batch-size {GLOBAL_BATCH}")
        return [word for text in texts for word in text.split()]

    def _has(self, needs: Mapping[str, tuple[Value, ...]]) -> bool:
        return all(self[name] in some for name, some in needs.items())

    def supported(self, release: str) -> bool:
        """Return whether a megatron-core release has all that the point chooses."""
        return all(factors()[name].supported(value, release) for name, value in self.chosen)

    def problems(self) -> list[Problem]:
        """Return the constraints that do not hold, also those of `needs`."""
        idle = [
            Problem((name, other), f"{name}: needs {other} = {' or '.join(map(shown, some))}")
            for name, _ in self.chosen
            for other, some in factors()[name].needs.items()
            if self[other] not in some
        ]
        broken = (rule for rule in CONSTRAINTS if not rule.holds(self))
        return idle + [Problem(rule.reads, f"{rule.name}: {rule.reason}") for rule in broken]


@dataclass(frozen=True)
class Leg:
    """Some steps of a point. `reshards`: a checkpoint has the optimizer's state by parameters, not by buffers."""

    point: Point
    steps: range
    reshards: bool = False


@dataclass(frozen=True)
class Problem:
    """What makes a point impossible: the factors that it depends on, and the reason."""

    factors: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Constraint:
    """What the values of some factors must have in common, with the reason. `holds` reads only these factors."""

    name: str
    reason: str
    reads: tuple[str, ...]
    holds: Callable[[Point], bool]


CONSTRAINTS: Final = (
    Constraint("ranks", f"at most {MOST_RANKS} processes", ("tp", "pp", "cp", "dp"), lambda p: p.ranks <= MOST_RANKS),
    Constraint(
        "global batch",
        f"dp * micro_batches divides {GLOBAL_BATCH} samples",
        ("dp", "micro_batches"),
        lambda p: p.count("dp") * p.count("micro_batches") <= GLOBAL_BATCH,
    ),
    Constraint(
        "stages",
        "pp * vpp divides the layers",
        ("layers", "pp", "vpp"),
        lambda p: p.count("layers") % (p.count("pp") * p.count("vpp")) == 0,
    ),
    Constraint(
        "virtual stages",
        "need a pipeline, and micro-batches that its ranks divide",
        ("pp", "vpp", "micro_batches"),
        lambda p: p["vpp"] == 1 or (p["pp"] != 1 and p.count("micro_batches") % p.count("pp") == 0),
    ),
    Constraint(
        "sequence parallel",
        "divides the work of tensor parallel ranks: tp=2",
        ("tp", "sequence_parallel"),
        lambda p: not p["sequence_parallel"] or p["tp"] != 1,
    ),
    Constraint(
        "experts under tensor parallel",
        "megatron-core refuses them without sequence_parallel=on",
        ("tp", "experts", "sequence_parallel"),
        lambda p: not p["experts"] or p["tp"] == 1 or p["sequence_parallel"] is True,
    ),
    Constraint(
        "expert ranks",
        "etp * ep divides tp * cp * dp",
        ("tp", "cp", "dp", "ep", "etp"),
        lambda p: (p.count("tp") * p.count("cp") * p.count("dp")) % (p.etp * p.count("ep")) == 0,
    ),
    Constraint(
        "query groups",
        "two of gqa can't be divided by four ranks",
        ("attention", "tp"),
        lambda p: p["attention"] != "gqa" or p.count("tp") <= 2,
    ),
    Constraint(
        "latent attention",
        "has rope",
        ("attention", "position"),
        lambda p: p["attention"] != "mla" or p["position"] == "rope",
    ),
    Constraint(
        "top 1",
        "the softmax over one expert is constant: its router has no gradient",
        ("topk", "score", "pre_softmax"),
        lambda p: p["topk"] == 2 or p["score"] == "sigmoid" or p["pre_softmax"] is True,
    ),
    Constraint(
        "sinkhorn",
        "routes by itself, balanced over the tokens that one rank has",
        ("balancing", "score", "pre_softmax", "groups", "topk", "cp", "sequence_parallel"),
        lambda p: (
            p["balancing"] != "sinkhorn"
            or (
                (p["score"], p["topk"], p["cp"], p["sequence_parallel"]) == ("softmax", 2, 1, False)
                and not (p["pre_softmax"] or p["groups"])
            )
        ),
    ),
    Constraint(
        "global aux loss",
        "accumulates over micro-batches: micro_batches=1",
        ("balancing", "micro_batches"),
        lambda p: p["balancing"] != "global_aux_loss" or p["micro_batches"] == 1,
    ),
    Constraint(
        "distributed optimizer",
        "divides the state of adam, or the matrices of muon",
        ("optimizer", "distributed_optimizer"),
        lambda p: not p["distributed_optimizer"] or p["optimizer"] != "sgd",
    ),
    Constraint(
        "sinks under context parallel",
        "are Transformer Engine's own, by cp_comm=a2a: no attention of the CPU has both",
        ("softmax", "cp", "cp_comm"),
        lambda p: p["softmax"] == "vanilla" or p["cp"] == 1 or p["cp_comm"] == "a2a",
    ),
    Constraint(
        "resume",
        "the layout that writes is possible, too, and has micro-batches of the same size where the loss depends on it",
        ("resume", "dp", "distributed_optimizer", "micro_batches", "balancing", "mask", "per_token_loss"),
        lambda p: p["resume"] == "none" or _resumable(p.writer, p),
    ),
    Constraint(
        "biases of experts",
        "megatron-core refuses them under tensor parallel and in a shared expert",
        ("bias", "experts", "shared_expert", "tp", "etp"),
        lambda p: not (p["bias"] and p["experts"]) or (p.etp == 1 and not p["shared_expert"]),
    ),
)


def _resumable(writer: Point, reader: Point) -> bool:
    alone = writer.changed(resume="none", reshardable=False, parallel_load=False)
    return not alone.problems() and alone.reference() == reader.reference()


# Relative. In float64 two orders of a reduction over a few thousand terms differ by 1e-13 of the largest term at most.
# Equal layouts differ by up to 2e-13, and with Adam by 7.7e-10 of a parameter: gradients that are zero in theory,
# noise of 1e-17, are divided by its epsilon of 1e-8. The smallest defect that was met is 4e-4.
TOLERANCE: Final = 1e-7
FACTOR: Final = 4.0  # spreads of a measured tolerance; equal layouts have up to 1.3 in bfloat16
# A gradient that is zero in theory (a key's bias) is rounding noise: its scale is at least this part of the largest.
FLOOR: Final = 1e-3
# The order in which quantities depend on each other: the first that deviates is closest to the cause.
QUANTITIES: Final = ("loss", "gradient", "norm", "norm of gathered", "clip", "parameter", "logged")


@dataclass(frozen=True)
class Difference:
    """The largest difference of a quantity on one rank from the reference.

    `quantity` is one of QUANTITIES. `parameter` is a canonical name, or what is logged; "" for a quantity of the whole
    model. `step` counts from 0. `scale` is the size that `difference` is relative to. `ratio` is how many times the
    expected values the computed ones are, by least squares; None where these are zero.
    """

    quantity: str
    parameter: str
    step: int
    rank: int
    difference: float
    scale: float
    ratio: float | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """What its spread is measured of."""
        return self.quantity, self.parameter, self.step

    @property
    def size(self) -> float:
        """The relative difference; infinite where it is not a number."""
        size = self.difference / self.scale if self.scale else float(self.difference > 0)
        return size if size == size else float("inf")


@dataclass(frozen=True)
class Deviation:
    """A quantity that is not that of the reference, with the ranks where it is not. See Difference."""

    quantity: str
    parameter: str
    step: int
    size: float
    ratio: float | None
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        """Return one line: quantity, parameter, size, ratio, step, ranks."""
        name = f"{self.quantity} of {self.parameter}" if self.parameter else self.quantity
        ratio = "" if self.ratio is None else f", {self.ratio:.6g} times the expected"
        ranks = ", ".join(map(str, self.ranks))
        return f"{name} deviates by {self.size:.3g}{ratio}, in step {self.step} on rank {ranks}"


@dataclass(frozen=True)
class Tolerance:
    """What a difference may have: `floor`, or FACTOR times the spread of its quantity, parameter and step.

    A spread is the largest difference of references from one whose weights are moved by one unit in the last place.
    """

    floor: float = TOLERANCE
    spreads: Mapping[tuple[str, str, int], float] = field(default_factory=dict)

    @classmethod
    def measured(cls, floor: float, moved: Iterable[Difference]) -> Tolerance:
        """Return the tolerance of the differences of moved references."""
        spreads: dict[tuple[str, str, int], float] = {}
        for row in moved:
            spreads[row.key] = max(row.size, spreads.get(row.key, 0.0))
        return cls(floor, spreads)

    def allows(self, difference: Difference) -> bool:
        """Return whether it is within; what is not a number is not, nor what has no finite spread."""
        spread = self.spreads.get(difference.key, 0.0)
        return difference.size <= max(self.floor, FACTOR * spread) and math.isfinite(difference.size)


def compare(differences: Iterable[Difference], tolerance: Tolerance = Tolerance()) -> tuple[Deviation, ...]:
    """Return the deviations of the first step that has one, in the order of QUANTITIES, the largest first.

    Later steps start from other parameters: their differences follow from those of the first. Sizes have six digits,
    since later ones are those of a processor, and equal ones are in the order of names.
    """
    over = [difference for difference in differences if not tolerance.allows(difference)]
    first = min((difference.step for difference in over), default=0)
    groups: dict[tuple[str, str], list[Difference]] = {}
    for difference in over:
        if difference.step == first:
            groups.setdefault((difference.quantity, difference.parameter), []).append(difference)
    deviations = [_merged(group) for group in groups.values()]
    return tuple(sorted(deviations, key=lambda row: (QUANTITIES.index(row.quantity), -row.size, row.parameter)))


def _merged(group: list[Difference]) -> Deviation:
    worst = max(group, key=lambda row: row.size)
    ranks = tuple(sorted({row.rank for row in group}))
    return Deviation(worst.quantity, worst.parameter, worst.step, float(f"{worst.size:.6g}"), worst.ratio, ranks)
