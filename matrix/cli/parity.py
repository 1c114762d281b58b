"""`megatrix parity`."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from matrix.cli.usage import add_command
from matrix.ground.catalog import loading
from matrix.ground.catalog.folders import new_root
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.catalog.versions import Range
from matrix.ground.errors import ExitStatus, MatrixError, counted
from matrix.kit.parity.factors import CARD, CPU, DTYPES, Deviation, Point
from matrix.prove.authoring import draft, parity_entry
from matrix.prove.execution import interrupt
from matrix.prove.parity import card
from matrix.prove.parity.campaigns import CoreResult, ParityRun, first_and_last
from matrix.prove.parity.points import DEVIATES, EQUAL, Cause, Certainty, PointResult
from matrix.prove.provision import host
from matrix.prove.store.paths import OUT
from matrix.read import package_source
from matrix.read.package_source import SourceKind
from matrix.show.terminal import Part, Prose, json_object, say, show

SEED: Final = 2**50  # its thousandfold is a seed of torch's: 64 bits
WITH_MODULES: Final = Range(">=2.1")  # docs/parity.md; 1.x imports what torch >= 2.9 lacks


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "parity", parity_command, words={"OUT": str(OUT)})
    parser.set_defaults(out=OUT)


def parity_command(parsed: argparse.Namespace) -> int:
    """Print the verdict; return 0 where all is equal, 1 for a deviation, 3 where nothing was decided."""
    interrupt.once()
    if parsed.entry:
        if not parsed.layout:
            raise MatrixError("an entry is drafted from layouts", got="--entry alone", expected="--layout TEXT")
        draft.new_folder(parsed.entry, new_root(None))
    catalog = loading.load()
    parsed = completed(parsed)
    search = {name: getattr(parsed, name) for name in ("unaided", "covers", "twice", "dtype", "te", "device", "mps")}
    given = possible(parsed.given, parsed.te)
    campaign = ParityRun(catalog, parsed.out / "parity", parsed.seed, say, given=given, **search)
    cores = cores_of(catalog, parsed)
    if parsed.layout:
        points = [possible(text, parsed.te) for text in parsed.layout]
        results = [campaign.asked(core, points) for core in cores]
        lines = layout_lines(points, parsed.seed, results, os.environ)
        if parsed.entry:
            say(f"{parity_entry.write(parsed.entry, new_root(None), points, results)}: replace every TODO")
    else:
        results = []
        for number, core in enumerate(cores):
            left = parsed.seconds - sum(result.seconds for result in results)
            results.append(campaign.searched(core, left / (len(cores) - number)))
        lines = search_lines(parsed.seed, results, os.environ)
    if parsed.json:
        print(json_object("parity/1", [core_json(result, os.environ) for result in results]))
    else:
        show(*lines)
    return status_of(results, points if parsed.layout else ())


def completed(parsed: argparse.Namespace) -> argparse.Namespace:
    """Return the options with what they leave open: the device's dtype; on a card its packages. Raises MatrixError."""
    dtypes, te, cores = DTYPES[parsed.device], parsed.te, parsed.mcore
    dtype = parsed.dtype or dtypes[0]
    if dtype not in dtypes:
        raise MatrixError(f"no such dtype on {parsed.device}", got=dtype, expected=" or ".join(dtypes))
    if parsed.layout and parsed.given:
        raise MatrixError("--given is of a search", got="--layout, too", fix="write its choices in each --layout")
    if parsed.mps and parsed.device != CARD:
        raise MatrixError("--mps is of a card", got=f"--device {parsed.device}", expected=f"--device {CARD}")
    if not all(map(str.strip, parsed.layout)):
        raise MatrixError("an empty layout is one rank", got='--layout ""', expected="--layout tp=2")
    if abs(parsed.seed) > SEED:
        raise MatrixError("the seed is too large", got=parsed.seed, expected=f"at most {SEED}")
    source = package_source.parse(host.load_configuration().resolve(parsed.te), TE) if parsed.te else None
    if source and source.kind is SourceKind.PYPI and source.revision not in WITH_MODULES:
        raise MatrixError("this Transformer Engine can't be compared", got=parsed.te, expected=WITH_MODULES.text)
    if not parsed.seconds > 0:
        raise MatrixError("not a time of a search", got=f"--seconds {parsed.seconds:g}", expected="more than 0")
    if parsed.device == CARD:
        if parsed.entry:
            raise MatrixError("an entry is drafted on the CPU, which judges its cases", got=f"--device {CARD}")
        te, core = te or card.own(TE), card.own(MCORE)
        cores = cores or ([core] if core and not parsed.consumer else [])
    return argparse.Namespace(**{**vars(parsed), "dtype": dtype, "te": te, "mcore": cores})


def status_of(results: Sequence[CoreResult], points: Collection[Point] = ()) -> ExitStatus:
    """Return the exit status of the results; each layout that was asked for, `points`, needs an answer in some core."""
    if any(result.deviates for result in results):
        return ExitStatus.BAD
    answered = {row.point for result in results for row in result.asked if row.outcome == EQUAL}
    whole = results and all(result.decided for result in results) and answered.issuperset(points)
    return ExitStatus.GOOD if whole else ExitStatus.NOTHING


def cores_of(catalog: Catalog, parsed: argparse.Namespace) -> list[str]:
    """Return the cores that the options name, the newest release by default. Raises MatrixError for no such source."""
    releases = [str(release.version) for release in catalog.megatron_core]
    named = [core for text in parsed.mcore for core in (releases if text == "all" else [text])]
    cores = [*named, *parsed.consumer] or releases[-1:]
    for source in map(host.load_configuration().resolve, cores):
        package_source.parse(source, MCORE)
    return cores


def possible(text: str, te: str) -> Point:
    """Return the point of a text, with the modules of `te`. Raises MatrixError for an impossible one, with reasons."""
    point = Point.parse(f"modules=te {text}" if te else text)
    if point["modules"] == "te" and not te:
        raise MatrixError("no Transformer Engine", got=str(point), expected="--te 2.18 or --te ./TransformerEngine@REV")
    if problems := point.problems():
        raise MatrixError("this layout is impossible", got=str(point), expected="; ".join(map(str, problems)))
    return point


MOST = 3  # deviations of a point that are printed


def command_line(result: CoreResult, comparison: PointResult, environ: Mapping[str, str]) -> str:
    """Return the command that makes a comparison of a core again."""
    own = "modules=local " * (bool(result.te) and comparison.point["modules"] == "local")  # not those of --te
    command, layout = environ.get("MEGATRIX_COMMAND", "megatrix"), shlex.quote(f"{own}{comparison.point}")
    core = shlex.quote(result.core) + (f" --te {shlex.quote(result.te)}" if result.te else "")
    device = f" --device {result.device}" * (result.device != CPU)
    device += f" --dtype {comparison.dtype}" * (comparison.dtype != DTYPES[result.device][0])
    return f"{command} parity --mcore {core} --layout {layout} --seed {comparison.seed}{device}"


def search_lines(seed: int, results: Sequence[CoreResult], environ: Mapping[str, str]) -> Iterator[Part]:
    """Yield the text of a search."""
    causes = [(result, cause) for result in results for cause in result.causes]
    breaks = [cause for _, cause in causes if cause.deviates and cause.certainty.is_break]
    judged, equal = sum(result.judged for result in results), sum(result.equal for result in results)
    verdict = f"DEVIATES: {counted(len(breaks), 'cause')}" if breaks else "EQUAL" if equal else "NOTHING DECIDED"
    yield f"{verdict} ({equal} layouts equal, {judged} comparisons, {len(results)} cores, seed {seed})"
    order = list(Certainty)
    for result, cause in sorted(causes, key=lambda row: order.index(row[1].certainty)):
        if cause.certainty is not Certainty.REFUSED:
            yield ""
            title = f"{cause.certainty.value} as {cause.entry}" if cause.entry else cause.certainty.value
            yield f"megatron-core {result.core}  {title}: {cause.point}"
            yield from _details(result, cause, environ)
    yield ""
    for result in results:
        refused = sum(cause.certainty is Certainty.REFUSED for cause in result.causes)
        yield Prose(
            f"megatron-core {result.core} on {result.base}: {result.equal} layouts equal, {refused} combinations "
            f"refused by upstream, {result.uncovered} pairs not covered, {result.seconds:.0f} s"
            + (f": {result.problem}" if result.problem else "")
        )


def _details(result: CoreResult, cause: Cause, environ: Mapping[str, str]) -> Iterator[Part]:
    yield from (Prose(str(deviation), 2) for deviation in cause.comparison.deviations[:MOST])
    if cause.comparison.text:
        yield Prose(f"{cause.comparison.outcome}: {cause.comparison.text}", 2)
    if arguments := cause.point.arguments():
        yield Prose(f"on the command line of Megatron-LM: {shlex.join(arguments)}", 2)
    yield f"  {command_line(result, cause.comparison, environ)}"


def layout_lines(
    points: Sequence[Point], seed: int, results: Sequence[CoreResult], environ: Mapping[str, str]
) -> Iterator[Part]:
    """Yield the text of some layouts in some cores."""
    for point in points:
        rows = [(result, row) for result in results for row in result.asked if row.point == point]
        outcomes = {row.outcome for _, row in rows}
        verdict = next((outcome.upper() for outcome in (DEVIATES, EQUAL) if outcome in outcomes), "NOTHING DECIDED")
        spans = first_and_last(point, results)
        yield f"{verdict}{f' in {spans}' * bool(spans)}: {point} (seed {seed})"
        for result, row in rows:
            largest = f", {row.largest:.2g} at most" * (row.outcome in (EQUAL, DEVIATES))
            yield f"  megatron-core {result.core}: {row.outcome}{largest}"
            yield from (Prose(str(deviation), 4) for deviation in row.deviations[:MOST])
            if row.text:
                yield Prose(row.text, 4)
            if row.outcome == DEVIATES:
                yield f"    {command_line(result, row, environ)}"
    yield from (Prose(f"megatron-core {result.core}: {result.problem}") for result in results if result.problem)


def core_json(result: CoreResult, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of one core as plain values."""

    def shown(comparison: PointResult) -> dict[str, Any]:
        return {
            "outcome": comparison.outcome,
            "text": comparison.text,
            "deviations": list(map(deviation_json, comparison.deviations)),
            "reproduce": command_line(result, comparison, environ),
        }

    causes = [
        {
            "certainty": cause.certainty.value,
            "entry": cause.entry,
            "layout": str(cause.point),
            "ranks": cause.point.ranks,
            "arguments": cause.point.arguments(),
            **shown(cause.comparison),
        }
        for cause in result.causes
    ]
    asked = [{"layout": str(comparison.point), **shown(comparison)} for comparison in result.asked]
    names = ("core", "base", "judged", "equal", "uncovered", "deviates", "problem")
    counts = {name: getattr(result, name) for name in names}
    return {**counts, "seconds": round(result.seconds, 1), "causes": causes, "asked": asked}


def deviation_json(deviation: Deviation) -> dict[str, Any]:
    """Return a deviation as plain values; a size that is infinite is null."""
    size = deviation.size if deviation.size < float("inf") else None
    return {**vars(deviation), "size": size, "ranks": list(deviation.ranks)}
