"""The tolerance of bf16 and FP8: layouts that are equal in float64 must not exceed it.

    PYTHONPATH=.:CORE PYTHON bench/parity_spreads.py [--seeds 50] [--fp8 tensorwise] [--out ROWS.jsonl]

PYTHON has torch, CORE is a folder with megatron-core, for FP8 with Transformer Engine. Each layout of each model is
judged with all seeds: the differences from one rank as multiples of their spread; matrix.kit.parity.factors.FACTOR are
allowed. What is over is judged in float64.
bf16 is the CPU's, under upstream's wrapper and optimizer of half precision; what they name float32 is float64.

With --fp8 the layers are Transformer Engine's under that recipe, with stand-ins for its kernels that round as FP8 does
(matrix.kit.parity.te_fp8): no kernel of a card.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from matrix.kit.parity import campaign, layout_step
from matrix.kit.parity.factors import FACTOR, QUANTITIES, Difference, Point
from matrix.kit.parity.shards import Draw
from matrix.kit.parity.tiny_model import Device

MODELS = (
    "layers=2",
    "attention=gqa activation=swiglu norm=rmsnorm untied=on layers=4",
    "optimizer=adam qk_norm=on bias=on per_token_loss=on mask=uneven",
    "experts=4 activation=swiglu optimizer=adam",
)
LAYOUTS = (
    "tp=2",
    "tp=2 sequence_parallel=on",
    "tp=4 sequence_parallel=on",
    "pp=2",
    "pp=2 dp=2 micro_batches=2",
    "dp=2",
    "dp=4 micro_batches=2 overlap_grad_reduce=on small_buckets=on",
    "cp=2",
    "cp=2 dp=2",
    "tp=2 pp=2 sequence_parallel=on micro_batches=2",
    "tp=2 dp=2 sequence_parallel=on recompute=full",
    "tp=2 cp=2 sequence_parallel=on",
    "dp=2 distributed_optimizer=on",
    "dp=2 ep=2 dispatcher=alltoall",
    "tp=2 ep=2 etp=1 sequence_parallel=on",
)
DEADLINE_S = 1800.0


def layouts(model: str) -> list[Point]:
    """Return the possible layouts of a model whose reference is the model itself."""
    points = [Point.parse(f"{model} {layout}") for layout in LAYOUTS]
    return [point for point in points if not point.problems() and point.reference() == Point.parse(model)]


def references(model: Point, seeds: range, device: Device) -> list[campaign.ReferenceNumbers]:
    """Return the reference of each seed."""
    draws = [Draw(seed, move) for seed in seeds for move in range(1 + device.moves)]
    ranks = campaign.measure(model, draws, DEADLINE_S, device)
    if isinstance(ranks, campaign.ParityAnswer):
        raise RuntimeError(ranks.trace)
    size = 1 + device.moves
    return [campaign.ReferenceNumbers.of(device, ranks[first : first + size]) for first in range(0, len(ranks), size)]


def rows(points: list[Point], seeds: range, device: Device) -> Iterator[dict[str, Any]]:
    """Yield one row for each layout and seed."""
    expected = references(points[0].reference(), seeds, device)
    for point in points:
        measured = campaign.measure(point, [Draw(seed) for seed in seeds], DEADLINE_S, device)
        if isinstance(measured, campaign.ParityAnswer):
            yield {"point": str(point), "outcome": measured.outcome, "text": measured.text}
            continue
        for seed, reference, legs in zip(seeds, expected, measured, strict=True):
            differences = [row for ranks in legs for row in layout_step.differences(reference.numbers, ranks)]
            worst = multiples(differences, reference.tolerance.spreads, device.floor)
            yield {"point": str(point), "seed": seed, "outcome": "judged", "worst": worst}


def multiples(differences: Iterable[Difference], spreads: Any, floor: float) -> dict[str, Any]:
    """Return by quantity and step the largest multiple of a spread, with that spread, the difference, the parameter."""
    worst: dict[str, Any] = {}
    for row in differences:
        spread = max(spreads.get(row.key, 0.0), floor / FACTOR)
        name = f"{row.quantity} {row.step}"
        if name not in worst or row.size / spread > worst[name][0]:
            worst[name] = (row.size / spread, spread, row.size, row.parameter)
    return worst


def table(judged: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each quantity: median and largest spread, largest multiple, and how many are over FACTOR."""
    by_name: dict[str, list[Any]] = defaultdict(list)
    for row in judged:
        for name, worst in row["worst"].items():
            by_name[name].append(worst)
    yield "| quantity, step | spread: median | largest | multiple: 99 % | largest | over |"
    for name in sorted(by_name, key=lambda name: (name[-1], QUANTITIES.index(name[:-2]))):
        multiple, spread, *_ = zip(*by_name[name], strict=True)
        high = sorted(multiple)[int(0.99 * len(multiple))]
        over = sum(value > FACTOR for value in multiple)
        cells = (statistics.median(spread), max(spread), high, max(multiple))
        yield f"| {name} | {' | '.join(f'{cell:.2g}' for cell in cells)} | {over} |"


def main() -> None:
    """Judge, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--moves", type=int, default=8)
    parser.add_argument("--model", action="append", help="one of these alone")
    parser.add_argument("--fp8", metavar="RECIPE")
    parser.add_argument("--out", type=Path, default=Path("reports/out/parity-spreads.jsonl"))
    parsed = parser.parse_args()
    device = Device(dtype="bfloat16", moves=parsed.moves)
    campaign.prepare_cell()
    models = parsed.model or MODELS
    if parsed.fp8:
        models = [f"modules=te fp8={parsed.fp8} {model}" for model in models]
    every = []
    with parsed.out.open("w") as file:
        for points in map(layouts, models):
            judged = []
            for row in rows(points, range(1, 1 + parsed.seeds), device):
                file.write(json.dumps(row) + "\n")
                file.flush()
                judged += [row] if row["outcome"] == "judged" else []
            every += judged
            print(
                f"{points[0].reference()}: {len(points)} layouts, {len(judged)} comparisons", *table(judged), sep="\n"
            )
    print(f"{len(every)} comparisons", *table(every), sep="\n")
    for text in dict.fromkeys(
        row["point"] for row in every if max(worst[0] for worst in row["worst"].values()) > FACTOR
    ):
        answer = campaign.Comparisons().judge(campaign.ParityTask(Point.parse(text)))
        print(f"over, in float64 {answer.outcome}: {text}")


if __name__ == "__main__":
    main()
