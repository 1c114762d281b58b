"""`megatrix fit`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from matrix.ask.check.rulings import Standing
from matrix.ask.fit.candidates import INDEX, Recorded
from matrix.ask.fit.fit_answer import UPGRADE, FitAnswer, FittingSet, FitVerdict, HeldBack, Installed, fit
from matrix.ask.fit.rules import Rejection
from matrix.ask.fit.wishes import parse_wishes
from matrix.ground.catalog import loading
from matrix.ground.catalog.distributions import read_builds, read_distributions
from matrix.ground.catalog.stack import PYTHON, TORCH, component_title, short
from matrix.prove.provision.resolution import Resolution, resolve
from matrix.show.terminal import RED, Part, Prose, json_object, show, table, text


def fit_command(parsed: argparse.Namespace) -> int:
    """Print the set that fits, or what conflicts; return the status of the verdict."""
    recorded = Recorded(loading.load(), read_distributions(), read_builds())
    wishes = parse_wishes(recorded.catalog, recorded.distributions, parsed.wants, parsed.framework, parsed.machine)
    resolutions: list[Resolution] = []

    def resolves(fitting: FittingSet) -> str:
        if parsed.offline:
            return ""
        resolutions.append(resolution(recorded, fitting))
        return resolutions[-1].problem if resolutions[-1].decided else ""

    answer = fit(recorded, wishes, resolves)
    resolved = resolutions[-1] if resolutions else None
    if answer.best and parsed.constraints:
        parsed.constraints.write_text(constraints(answer, resolved), encoding="utf-8")
    if parsed.json:
        print(json_object("fit/1", [to_json(answer, resolved)]))
    else:
        show(*render(answer, resolved, parsed.constraints), quiet=parsed.quiet)
    return answer.verdict.status


def resolution(recorded: Recorded, fitting: FittingSet) -> Resolution:
    """Return how the index resolves a set: its wheels, what built packages require, and what goes beside them."""
    requires = {row.package: row.requires for row in recorded.builds.source_build}
    wheels = [f"{part.package}=={part.version}" for part in fitting.installed if part.way == "wheel"]
    built = [text for part in fitting.installed if part.way != "wheel" for text in requires.get(part.package, ())]
    return resolve([*wheels, *built, *fitting.beside], fitting.versions[PYTHON])


STYLES = {FitVerdict.FITS: "bold green", FitVerdict.UNKNOWN: "bold yellow", FitVerdict.CONFLICT: RED}
MOST_EVIDENCE = 3  # lines for one release
MOST_REASONS = 8
OFFLINE = "the index was not queried: the recorded facts of matrix/ground/catalog/facts alone decide"


def render(answer: FitAnswer, resolved: Resolution | None, constraints_file: Path | None = None) -> Iterator[Part]:
    """Yield the verdict, the set, its evidence, the image, the installation; or what conflicts, and what it costs."""
    verdict = text((f"{answer.verdict.value}:", STYLES[answer.verdict]))
    if answer.best is None:
        yield table([(verdict, " ".join(map(answer.wishes.text, _limiting(answer))) or "nothing fits")])
        yield table(
            [("why:", reason.text, f"({reason.evidence})") for reason in answer.reasons[:MOST_REASONS]], indent=2
        )
        for number, alternative in enumerate(answer.alternatives, start=1):
            dropped, fitting = " and ".join(alternative.dropped), alternative.fitting
            yield table([(f"{number}. without", f"{dropped}: {summary(fitting)}")])
            if alternative.remark:
                yield Prose(alternative.remark, indent=3)
        if not answer.alternatives:
            yield Prose("no set fits without one or two of the wishes either")
        return
    yield table([(verdict, summary(answer.best))])
    for item in answer.unknown:
        yield table([(text(("UNKNOWN:", "bold yellow")), item)], indent=2)
    yield table(map(held_back_line, answer.held_back), indent=2)
    yield ""
    yield from _evidence(answer.best)
    yield from _options(answer.best)
    yield from _image(answer.best)
    yield ""
    yield from _installation(answer.best, constraints_file)
    yield ""
    yield Prose(resolved_text(resolved))


def held_back_line(held_back: HeldBack) -> tuple[str, str]:
    """Return which newer releases are not chosen, and why."""
    newest, count = held_back.newer[0], len(held_back.newer)
    releases = ", ".join(held_back.newer) if count < 4 else f"{newest} and {count - 1} others"
    return f"{component_title(held_back.axis)} {held_back.chosen}, not {releases}:", held_back.reason.text


def _limiting(answer: FitAnswer) -> list[str]:
    """Return the names of all wishes, in order."""
    wishes = answer.wishes
    return [*wishes.by_component, *wishes.given, *(["framework"] if wishes.framework else [])]


def summary(fitting: FittingSet) -> str:
    """Return a set in one line."""
    return ", ".join(f"{component_title(axis)} {candidate}" for axis, candidate in fitting.chosen.items())


def resolved_text(resolved: Resolution | None) -> str:
    """Return what the index says of a set."""
    if resolved is None:
        return OFFLINE
    if not resolved.pins:
        problem = " ".join(resolved.problem.split())[:100]
        return f"the index did not confirm the set: recorded facts alone decide ({problem})"
    return f"uv resolves the set on the site's index: {len(resolved.pins)} packages"


def _evidence(fitting: FittingSet) -> Iterator[Part]:
    rows = []
    for axis, candidate in fitting.chosen.items():
        texts = fitting.evidence[axis]
        for number, item in enumerate(texts[:MOST_EVIDENCE]):
            head = (component_title(axis), str(candidate)) if number == 0 else ("", "")
            rows.append((*head, item.kind, item.text))
        if len(texts) > MOST_EVIDENCE:
            rows.append(("", "", "", f"and {len(texts) - MOST_EVIDENCE} more (--json)"))
    yield table(rows, gap=2)
    brought = [
        f"{component_title(name)} {version}"
        for name, version in fitting.versions.items()
        if name not in fitting.chosen and name not in fitting.chosen[TORCH].replaced
    ]
    if brought:
        yield table([("torch's wheel brings:", ", ".join(brought))])


def _options(fitting: FittingSet) -> Iterator[Part]:
    """Yield the known breaks that need an option or a condition, first those without which no set fits."""
    yield table([(text(("but:", "bold yellow")), caveat) for caveat in fitting.caveats])
    standings = (Standing.WITH_OPTIONS, Standing.SILENT)
    ids = [str(failure.failure.id) for standing in standings for failure in fitting.result.of(standing)]
    if ids:
        yield table([(f"{len(ids)} known failures with certain options:", ", ".join(ids))])


def _image(fitting: FittingSet) -> Iterator[Part]:
    if image := fitting.image:
        head = "image with this set:" if image.has_all else "nearest image:"
        parts = [f"alike {_versions(image.alike)}"]
        parts += [f"otherwise {_versions(image.otherwise)}"] if image.otherwise else []
        parts += [image.driver] if image.driver else []
        yield table([(head, image.id, "; ".join(parts))])


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{short(name)} {version}" for name, version in versions.items())


def _installation(fitting: FittingSet, constraints_file: Path | None) -> Iterator[Part]:
    rows = [
        (f"{part.package} {part.version}", part.way, "; ".join(filter(None, [part.needs, part.minutes])))
        for part in fitting.installed
    ]
    yield table(rows, gap=2)
    yield ""
    yield "install:"
    yield from (f"  {line}" for line in install_lines(fitting, constraints_file))


def install_lines(fitting: FittingSet, constraints_file: Path | None = None) -> Iterator[str]:
    """Yield the commands that install a set into a new environment."""
    option = f" -c {constraints_file}" if constraints_file else ""
    yield f"uv venv --seed --python {fitting.versions[PYTHON]} fit && . fit/bin/activate"
    wheels = [part for part in fitting.installed if part.way == "wheel" and part.backend == INDEX]
    for part in fitting.installed:
        if part.package == TORCH and part.backend != INDEX:
            yield f"uv pip install --torch-backend={part.backend} {part.package}=={part.version}"
    if wheels:
        yield f"pip install{option} {_requirements(wheels)}{''.join(f' {text!r}' for text in fitting.beside)}"
    if newer := [part for part in fitting.installed if part.way == UPGRADE]:
        yield f"pip install --no-deps {_requirements(newer)}"
    if built := [part for part in fitting.installed if part.way in ("build", "attached wheel")]:
        yield "pip install ninja packaging setuptools wheel pybind11"
        yield f"pip install --no-build-isolation --no-cache-dir{option} {_requirements(built)}"
    for part in fitting.installed:
        if part.way == "clone":
            yield f"pip install --no-build-isolation git+{part.backend}"


def _requirements(installed: Iterable[Installed]) -> str:
    return " ".join(f"{part.package}=={part.version}" for part in installed)


def constraints(answer: FitAnswer, resolved: Resolution | None) -> str:
    """Return the constraints file of an answer: the set, and what uv resolved besides where the index answered."""
    if answer.best is None:
        return ""
    own = {pin.partition("==")[0]: pin for pin in answer.best.pins}
    lines = [f"# {answer.verdict.value}: {summary(answer.best)}", f"# {resolved_text(resolved)}", *own.values()]
    backend = any(part.package == TORCH and part.backend != INDEX for part in answer.best.installed)
    for pin in resolved.pins if resolved else ():
        name = pin.partition("==")[0].strip()
        library = name.startswith(("nvidia-", "cuda-", "triton"))  # of the index's torch, not of another CUDA's
        if name not in own and not (backend and library):
            lines.append(pin)
    return "\n".join(lines) + "\n"


def to_json(answer: FitAnswer, resolved: Resolution | None) -> dict[str, Any]:
    """Return an answer as plain JSON values; docs/schema/fit.json describes them."""
    return {
        "verdict": answer.verdict.value,
        "wishes": [answer.wishes.text(name) for name in _limiting(answer)],
        "best": _set_json(answer.best) if answer.best else None,
        "held_back": [
            {**vars(held), "newer": list(held.newer), "reason": _reason_json(held.reason)} for held in answer.held_back
        ],
        "reasons": list(map(_reason_json, answer.reasons)),
        "alternatives": [
            {"without": list(alternative.dropped), "remark": alternative.remark, "set": _set_json(alternative.fitting)}
            for alternative in answer.alternatives
        ],
        "unknown": list(answer.unknown),
        "index": resolved_text(resolved),
        "resolved": list(resolved.pins) if resolved else [],
        "tried": answer.tried,
    }


def _reason_json(reason: Rejection) -> dict[str, Any]:
    return {"text": reason.text, "axes": sorted(reason.axes), "evidence": reason.evidence}


def _set_json(fitting: FittingSet) -> dict[str, Any]:
    image = fitting.image
    return {
        "versions": fitting.versions,
        "chosen": {
            axis: {"version": str(candidate), "evidence": [dict(vars(item)) for item in fitting.evidence[axis]]}
            for axis, candidate in fitting.chosen.items()
        },
        "installed": [dict(vars(part)) for part in fitting.installed],
        "image": {**vars(image), "has_all": image.has_all} if image else None,
        "install": list(install_lines(fitting)),
        "caveats": list(fitting.caveats),
        "check": fitting.result.answer.value,
        "with_options": [
            str(failure.failure.id)
            for standing in (Standing.WITH_OPTIONS, Standing.SILENT)
            for failure in fitting.result.of(standing)
        ],
    }
