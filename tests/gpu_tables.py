"""Print the tables of what runs where at level gpu: `python -m tests.gpu_tables`. 8 s of a core.

The machines are stand-ins: none of it was run. reports/measurements/2026-11-26-level-gpu.md has such tables.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from matrix.cli.places import BUSY
from matrix.ground.cases.machine_requirements import BaseOffer, builds_te, offered, unmet
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, PythonEnvironment
from matrix.ground.catalog.model import HOST, Catalog, Wheels
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.case_request import cases_here, with_host
from matrix.prove.planning.night import night, of_base, pairwise
from matrix.prove.planning.statistics import Availability, Durations, Parallel, availability
from tests.unit.cli.test_gpu_plans import MACHINES
from tests.unit.prove.planning.test_gpu_machines import A100, B200, CLONES, ENGINE, FEATURES, GIB, H100, PACKAGES

CORES: Final = 16
A800: Final = ("NVIDIA A800", "8.0")
TORCH_CUDA: Final = {"2.3.1": "12.1", "2.4.0": "12.1", "2.13.0": "13.0", "2.15.0": "13.0"}  # of PyPI's wheels


def machine(gpus: int, gpu: tuple[str, str], nvcc: str, driver: str = "580.82.07", multicast: bool = True) -> Machine:
    """Return a machine with these GPUs of 80 GiB, and 128 GiB of memory for each."""
    cards = tuple(Gpu(*gpu, 80 * GIB, multicast, f"GPU-{place}") for place in range(gpus))
    return Machine(driver, gpus, Cuda("13.0", gpus=cards), memory=128 * GIB * gpus, nvcc=nvcc)


def counted(
    catalog: Catalog, cases: Sequence[Planned], offer: Callable[[str], BaseOffer], here: Machine
) -> Availability:
    """Return what runs on a machine, each case with the default seconds."""
    parallel = Parallel(CORES, max(len(here.gpus or ()), int(BUSY * CORES)), CORES)
    return availability(catalog, cases, offer, {Level.GPU: here}, Durations(catalog, {}), parallel)


def row(title: str, found: Availability) -> str:
    """Return a row: planned, run, unavailable, minutes, GPU-minutes."""
    parts = ((found.shared - found.gloo, "over one NCCL"), (found.gloo, "on gloo"))
    shared = "".join(f", {number} {how}" for number, how in parts if number)
    missing = ", ".join(f"{count:,} {kind.value}" for kind, count in Counter(found.missing).most_common())
    times = f"{found.seconds / 60:,.0f} | {found.gpu_seconds / 60:,.0f}"
    return f"| {title} | {found.planned:,} | {found.runs:,}{shared} | {missing} | {times} |"


def environments(catalog: Catalog) -> Iterator[str]:
    """Yield the rows of `--here`, with the nvcc of the images; the bare machine has none."""
    for name, has_clones in (("one", True), ("24.07", False), ("24.07", True), ("24.03", True), ("CPU", True)):
        environment, site, cuda = MACHINES[name]
        known = with_host(catalog, environment.packages, environment.minor)
        clones = CLONES if has_clones else ()
        offer = offered(
            known, HOST, PythonEnvironment(packages=environment.packages, features=environment.features), clones=clones
        )
        here = replace(site.machine, cuda=cuda, nvcc="none" if name == "one" else "12.5")
        cases = cases_here(known, HOST, environment.packages, [Level.GPU])
        yield row(f"{name}{', clones' * has_clones}", counted(known, cases, lambda base, own=offer: own, here))  # type: ignore[misc]


def hosts(catalog: Catalog) -> Iterator[str]:
    """Yield the rows of hosts with torch 2.11 and numpy 2: entries, cases, unavailable; without nvcc and with it."""
    for title, has_engine, gpus, gpu in (
        ("1 x H100, no Transformer Engine", False, 1, H100),
        ("1 x H100, Transformer Engine 2.18", True, 1, H100),
        *(
            (f"{gpus} x {gpu[0].split()[1]}", True, gpus, gpu)
            for gpus, gpu in ((2, H100), (8, H100), (8, A100), (8, B200))
        ),
    ):
        packages, features = PACKAGES | (ENGINE if has_engine else {}), ["cuda", *["compiled-te"] * has_engine]
        known = with_host(catalog, packages, "3.12")
        offer = offered(
            known, HOST, PythonEnvironment(packages=packages, features=features, torch_cuda="13.0"), clones=CLONES
        )
        cases = cases_here(known, HOST, packages, [Level.GPU])
        for nvcc in ("none", "13.0"):
            here = machine(gpus, gpu, nvcc, multicast=gpus > 1 and gpu is not A100)
            lacks = [unmet(known, item, offer, here) for item in cases]
            entries = {item.failure for item, lack in zip(cases, lacks, strict=True) if lack is None}
            missing = Counter(lack.kind.value for lack in lacks if lack).most_common()
            texts = ", ".join(f"{count} {kind}" for kind, count in missing)
            yield f"| {title}, nvcc {nvcc} | {len(entries)} | {lacks.count(None)} | {texts} |"


def night_offer(catalog: Catalog, base: str) -> BaseOffer:
    """Return what a base of the night offers: an image that is local, an environment as tox makes it."""
    spec = catalog.base(base)
    if not isinstance(spec, Wheels):
        return offered(catalog, base, clones=CLONES)
    packages, cuda = {"torch": str(spec.torch)}, TORCH_CUDA[str(spec.torch)]
    return offered(
        catalog,
        base,
        PythonEnvironment(packages=packages, features=["cuda", "pkg_resources"], torch_cuda=cuda),
        clones=CLONES,
    )


def nights(catalog: Catalog, cases: Sequence[Planned]) -> Iterator[str]:
    """Yield the rows of the night, then those of its environments of wheels."""
    for title, here in (
        ("1 x H100, no nvcc", machine(1, H100, "none", multicast=False)),
        ("1 x H100, nvcc 12.4", machine(1, H100, "12.4", multicast=False)),
        ("1 x H100, nvcc 13.0", machine(1, H100, "13.0", multicast=False)),
        ("2 x H100, nvcc 12.4", machine(2, H100, "12.4")),
        ("8 x H100, nvcc 12.4", machine(8, H100, "12.4")),
        ("8 x A100, nvcc 12.4", machine(8, A100, "12.4", multicast=False)),
        ("8 x B200, nvcc 13.0", machine(8, B200, "13.0")),
        ("8 x A800, driver 470, no nvcc", machine(8, A800, "none", "470.161.03", multicast=False)),
    ):
        for part, of_part in (("", cases), ("; wheels", [item for item in cases if is_made(catalog, item)])):
            built = sum(
                builds_te(item, offer) and unmet(catalog, item, offer, here) is None
                for item in of_part
                for offer in [night_offer(catalog, item.cell.base)]
            )
            found = counted(catalog, of_part, lambda base: night_offer(catalog, base), here)
            yield f"{row(title + part, found)} {built} with a built Transformer Engine |"


def line(catalog: Catalog) -> Iterator[str]:
    """Yield the rows of Transformer Engine 1.9 on torch-2.4.0 on one H100."""
    packages = {"torch": "2.4.0", "numpy": "1.26.4"}
    offer = offered(
        catalog,
        "torch-2.4.0",
        PythonEnvironment(packages=packages, features=FEATURES, torch_cuda="12.1"),
        clones=CLONES,
    )
    cases = of_base(catalog, "torch-2.4.0", [Level.GPU], te_line="1.9")
    for nvcc in ("12.4", "none"):
        here = machine(1, H100, nvcc, multicast=False)
        yield row(f"torch-2.4.0, line 1.9, nvcc {nvcc}", counted(catalog, cases, lambda base: offer, here))


def is_made(catalog: Catalog, item: Planned) -> bool:
    """Return whether a case runs in an environment of wheels."""
    return isinstance(catalog.base(item.cell.base), Wheels)


def main() -> None:
    """Print the tables."""
    catalog = load()
    cases = night(catalog, pairwise, (Level.GPU,))
    wheels = sum(is_made(catalog, item) for item in cases)
    images = {item.cell.base for item in cases if not is_made(catalog, item)}
    lines = [f"{len(cases):,} cases: {wheels:,} in environments, {len(cases) - wheels:,} in {len(images)} images"]
    for rows in (environments(catalog), hosts(catalog), nights(catalog, cases), line(catalog)):
        lines += ["", *rows]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
