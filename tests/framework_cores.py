"""Which megatron-core, Transformer Engine and torch the newest release of each framework works with.

    python -m tests.framework_cores                    report breaks that tests/framework_breaks.json does not have
    python -m tests.framework_cores --write [NAME ...] record them, and write the page
    python -m tests.framework_cores --wheels FOLDER    read these wheels; pip downloads nothing
    python -m tests.framework_cores slime --clone slime=CLONE@v0.3.1

pip downloads one wheel of each framework (28 MB in all), with its own configuration; nothing of it is executed. slime
and NeMo-RL have no wheel: they are read from the revision of a clone; without one, the last line names them as unread.
A framework is held against the releases that its metadata declares and all newer ones, and against every recorded
megatron-core where it declares none. Kept are breaks that a gate refuses (`matrix.read.api.finding.BREAKING`) and that
nothing masks. The exit status is 1 for a new break: a release of either side appeared, or the reader changed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.versions import format_ranges
from matrix.ground.errors import MatrixError
from matrix.read.api import pairs, recording, sides
from matrix.read.api.finding import BREAKING
from matrix.read.api.pairs import recorded
from matrix.read.api.provider import MEGATRON_CORE, Provider, provider_of
from matrix.read.api.relevance import is_yanked

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "tests" / "framework_breaks.json"
PAGE: Final = ROOT / "reports" / "measurements" / "frameworks.md"
# Frameworks that call megatron-core, Transformer Engine or these parts of torch, by their names on PyPI.
FRAMEWORKS: Final = (
    "accelerate",
    "areal",
    "mbridge",
    "megatron-bridge",
    "ms-swift",
    "nemo-toolkit",
    "nvidia-modelopt",
    "torchtitan",
    "verl",
)
PACKAGES: Final = ("transformer-engine", "megatron-core", "torch")
CLONED: Final = ("nemo-rl", "slime")  # without a wheel
HEAD: Final = """# Which core does a framework want?

Read on 2026-11-26. The newest wheel of each framework on PyPI, and the newest tag of NeMo-RL and slime, which have
none, held against the releases that its metadata declares and all newer ones (`megatrix contract --consumer`); where it
declares no megatron-core, against all. A break is a call that raises or is misbound where a job reaches it: many need
an option or a model. `tests/framework_breaks.json` names each; `tox run -e nightly-checks -- frameworks` reports what
is new, and `python -m tests.framework_cores --write` writes this page.

| framework | package | declares | no break found | with breaks |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Held:
    """A framework's release held against the releases of a provider.

    `breaks`: callee, calling function and message -> releases of the provider.
    """

    framework: str
    version: str
    provider: str
    declared: str
    releases: tuple[str, ...]
    breaks: Mapping[str, tuple[str, ...]]

    @property
    def broken(self) -> list[str]:
        """Return the releases that have a break."""
        return [release for release in self.releases if any(release in where for where in self.breaks.values())]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare or write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to read")
    clone = "the revision of a clone of a framework that has no wheel; several times too"
    parser.add_argument("--clone", metavar="NAME=PATH@REV", action="append", default=[], help=clone)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="*", default=(*FRAMEWORKS, *CLONED), help="frameworks (default: all)")
    options = parser.parse_args(argv)
    known = read_record(RECORD.read_text("utf-8")) if RECORD.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        clones = dict(cloned(text) for text in options.clone)
        sources = {name: clones[name] for name in options.names if name in clones}
        for name in [name for name in options.names if name not in CLONED]:
            sources[name] = str(wheel_of(name, options.wheels or download(name, Path(folder))))
        fresh = [held for name, source in sources.items() for held in held_against(name, source)]
    for line in (lines := list(new_breaks(known, fresh))):
        print(line)
    unread = [name for name in options.names if name not in sources]
    left = f"; unread without --clone: {', '.join(unread)}" if unread else ""
    print(f"{len(fresh)} pairs of packages, {len(lines)} new breaks{left}")
    if options.write:
        kept = [held for held in known if held.framework not in sources]
        ordered = sorted([*kept, *fresh], key=lambda held: (held.framework, PACKAGES.index(held.provider)))
        RECORD.write_text(json.dumps([encode(held) for held in ordered], indent=1) + "\n", "utf-8")
        PAGE.write_text(page(ordered), "utf-8")
    return 0 if options.write else int(bool(lines))


def read_record(text: str) -> list[Held]:
    """Return what the recorded file states."""
    return list(decode(tuple[Held, ...], json.loads(text), str(RECORD)))


def download(name: str, folder: Path) -> Path:
    """Download the newest wheel of a package, whichever Python it needs; return its folder. Raises MatrixError."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "--ignore-requires-python",  # it is only read: Megatron-Bridge 0.6 requires 3.12
        "-d",
        str(folder),
        name,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise MatrixError("pip can't download this package", where=name, got=result.stderr.strip()[-400:])
    return folder


def wheel_of(name: str, folder: Path) -> Path:
    """Return the newest wheel of a package in a folder. Raises MatrixError where there is none."""
    wheels = {parse_wheel_filename(path.name)[:2]: path for path in folder.glob("*.whl")}
    versions = [version for package, version in wheels if package == name]
    if not versions:
        raise MatrixError("no wheel of this package", where=str(folder), got=name, expected=f"{name}-*.whl")
    return wheels[parse_wheel_filename(f"{name.replace('-', '_')}-{max(versions)}-py3-none-any.whl")[:2]]


def cloned(text: str) -> tuple[str, str]:
    """Return the framework and the revision that NAME=PATH@REV gives. Raises MatrixError for another text."""
    name, _, source = text.partition("=")
    if name not in CLONED or "@" not in source:
        raise MatrixError("not a clone of a framework", got=text, expected=f"NAME=PATH@REV, {' or '.join(CLONED)}")
    return name, source


def held_against(name: str, source: str) -> Iterator[Held]:
    """Hold a wheel or a revision against each provider that it declares, and megatron-core."""
    wheel = Path(source)
    version = str(parse_wheel_filename(wheel.name)[1]) if wheel.suffix == ".whl" else source.rpartition("@v")[2]
    declared = sides.declared_ranges(source)
    for package in PACKAGES:
        if package not in declared and package != MEGATRON_CORE.package:
            continue
        provider = provider_of(package)
        releases = judged(declared.get(package), offered(provider))
        try:
            consumers = sides.consumers_of(source, provider)
        except MatrixError:
            continue  # nothing in it uses the provider
        findings = pairs.findings(consumers, provider, [recorded(provider, release) for release in releases])
        breaks: dict[str, list[str]] = {}
        for finding in findings:
            if finding.kind in BREAKING and not finding.masked:
                key = f"{finding.callee} in {finding.call_site.function or 'the module'}: {finding.message}"
                breaks.setdefault(key, []).append(finding.provider)
        unique = {key: tuple(dict.fromkeys(where)) for key, where in sorted(breaks.items())}
        yield Held(name, version, package, str(declared.get(package, "")), tuple(releases), unique)


def offered(provider: Provider) -> list[str]:
    """Return the recorded releases without withdrawn ones."""
    return [text for text in recording.recorded_surfaces(provider) if not is_yanked(provider.package, text)]


def judged(declared: SpecifierSet | None, releases: Sequence[str]) -> list[str]:
    """Return the releases from the oldest that a framework declares on; all where none is declared or recorded."""
    allowed = list(declared.filter(releases)) if declared else []
    return list(releases[releases.index(allowed[0]) :]) if allowed else list(releases)


def new_breaks(known: Iterable[Held], fresh: Iterable[Held]) -> Iterator[str]:
    """Yield a line for each break, and release that has it, that is not recorded."""
    before = {(held.framework, held.provider, key): set(where) for held in known for key, where in held.breaks.items()}
    for held in fresh:
        for key, where in held.breaks.items():
            added = [
                release for release in where if release not in before.get((held.framework, held.provider, key), ())
            ]
            if added:
                title = f"{held.framework} {held.version} x {held.provider}"
                yield f"new: {title} {format_ranges(added, held.releases)}: {key}"


def page(every: Sequence[Held]) -> str:
    """Return the page: a table."""
    rows = ""
    for held in every:
        clean = [release for release in held.releases if release not in held.broken]
        declared = f"`{held.declared}`" if held.declared else "nothing"
        cells = [format_ranges(part, held.releases) or "none" for part in (clean, held.broken)]
        rows += f"| {held.framework} {held.version} | {held.provider} | {declared} | {cells[0]} | {cells[1]} |\n"
    return f"{HEAD}{rows}"


if __name__ == "__main__":
    sys.exit(main())
