"""The differences between the numbers of all ranks of a layout and those of the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from matrix.kit.parity.deviations import FLOOR, Difference
from matrix.kit.parity.factors import GLOBAL_BATCH
from matrix.kit.parity.layout_step import Numbers, Step
from matrix.kit.parity.tiny_model import SEQUENCE

Parts = list[tuple[int, Any, Any]]  # rank, flat index, values

NOISE: Final = 1e-12  # a gradient that is zero in theory, such as of a bias of keys: it may move nothing


class HarnessError(Exception):
    """The comparison itself is wrong: numbers are missing, or none depends on the model."""


def differences(reference: Numbers, ranks: Sequence[Numbers]) -> Iterator[Difference]:
    """Yield every difference of every rank from the reference. Raises HarnessError where some numbers are missing."""
    shapes: dict[str, tuple[int, ...]] = {}
    for numbers in ranks:
        shapes |= numbers.shapes
    if shapes != reference.shapes:
        names = sorted(name for name in {*shapes, *reference.shapes} if shapes.get(name) != reference.shapes.get(name))
        raise HarnessError(f"other parameters than those of the reference: {', '.join(names)}")
    for number, expected in enumerate(reference.steps):
        yield from step_differences(number, expected, [numbers.steps[number] for numbers in ranks], shapes)


def step_differences(
    number: int, expected: Step, steps: Sequence[Step], shapes: dict[str, tuple[int, ...]]
) -> Iterator[Difference]:
    """Yield the differences of one step."""
    tokens = whole({"": (GLOBAL_BATCH * SEQUENCE,)}, parts([_losses(expected)]))
    yield from _elementwise("loss", number, tokens, parts([_losses(step) for step in steps]))
    gradients = whole(shapes, parts([expected.gradients]))
    computed = parts([step.gradients for step in steps])
    yield from _elementwise("gradient", number, gradients, computed)
    yield from _scalars("norm", number, expected.norm, [step.norm for step in steps])
    norm = math.sqrt(sum(float(values.square().sum()) for values in whole(shapes, computed).values()))
    yield from _scalars("norm of gathered", number, norm, [step.norm for step in steps])
    yield from _scalars("clip", number, expected.clip, [step.clip for step in steps])
    parameters = whole(shapes, parts([expected.parameters]))
    yield from _elementwise("parameter", number, parameters, parts([step.parameters for step in steps]))
    for name, value in expected.logged.items():
        logged = [step.logged[name] for step in steps if name in step.logged]
        if not logged:
            raise HarnessError(f"no rank logs {name}")
        # Before 0.19 each data parallel rank logs what its own samples have.
        yield from _scalars("logged", number, value, [sum(logged) / len(logged)], name)


def check_reference(reference: Numbers) -> None:
    """Raise HarnessError where a comparison with this reference would show nothing."""
    for number, step in enumerate(reference.steps):
        losses = [float(value) for _, values in step.losses for value in values.flatten()]
        if not all(map(math.isfinite, losses)) or max(losses) - min(losses) < FLOOR:
            raise HarnessError(f"the loss of step {number} is flat, or not a number")
        if not any(float(values.abs().max()) > 0 for *_, values in step.gradients if values.numel()):
            raise HarnessError(f"all gradients of step {number} are zero")
    for (name, _, before), (_, _, after) in zip(
        reference.steps[0].parameters, reference.steps[-1].parameters, strict=True
    ):
        gradients = [values for other, _, values in reference.steps[-1].gradients if other == name]
        moved = any(float(values.abs().max()) > NOISE for values in gradients)
        if len(reference.steps) > 1 and moved and bool((before == after).all()):
            raise HarnessError(f"{name} has a gradient and is not updated")


def dead(reference: Numbers) -> list[str]:
    """Return the parameters whose gradients are zero in every step: nothing is compared for these."""
    alive = {name for step in reference.steps for name, _, values in step.gradients if bool((values != 0).any())}
    return sorted(reference.shapes.keys() - alive)


def parts(ranks: Sequence[Sequence[tuple[str, Any, Any]]]) -> dict[str, Parts]:
    """Return the parts of every parameter, by its name, with their ranks."""
    by_name: dict[str, Parts] = {}
    for rank, rows in enumerate(ranks):
        for name, index, values in rows:
            if values.numel():
                by_name.setdefault(name, []).append((rank, index, values))
    return by_name


def whole(shapes: dict[str, tuple[int, ...]], by_name: dict[str, Parts]) -> dict[str, Any]:
    """Return every parameter, flat, from its parts. Raises HarnessError where an element is in no part."""
    import torch

    gathered = {}
    for name, shape in shapes.items():
        values = torch.full((math.prod(shape),), math.nan)
        covered = torch.zeros(math.prod(shape), dtype=torch.bool)
        for _, index, part in reversed(by_name.get(name, [])):
            values[index], covered[index] = part, True
        if not bool(covered.all()):
            raise HarnessError(
                f"{int((~covered).sum())} of {len(covered)} elements of {name or 'the loss'} are missing"
            )
        gathered[name] = values
    return gathered


def _losses(step: Step) -> list[tuple[str, Any, Any]]:
    return [("", places.flatten(), values.flatten()) for places, values in step.losses]


def _elementwise(
    quantity: str, number: int, expected: dict[str, Any], by_name: dict[str, Parts]
) -> Iterator[Difference]:
    largest = max((float(values.abs().max()) for values in expected.values()), default=0.0)
    for name, values in expected.items():
        if name not in by_name:
            raise HarnessError(f"no rank has the {quantity} of {name}")
        scale = max(float(values.abs().max()), FLOOR * largest)
        for rank, index, part in by_name[name]:
            wanted = values[index]
            square = float((wanted * wanted).sum())
            ratio = float((part * wanted).sum()) / square if square else None
            yield Difference(quantity, name, number, rank, float((part - wanted).abs().max()), scale, ratio)


def _scalars(
    quantity: str, number: int, expected: float | None, values: Sequence[float | None], name: str = ""
) -> Iterator[Difference]:
    for rank, value in enumerate(values):
        if value is not None and expected:
            difference = abs(value - expected)
            yield Difference(quantity, name, number, rank, difference, abs(expected), value / expected)
