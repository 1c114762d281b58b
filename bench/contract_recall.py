"""Mine API mismatches that upstream mended, and count those that the reader finds in the commit before.

    python bench/contract_recall.py --mcore CLONE --te CLONE [--most 60] [--list]

A truth is mined from diffs alone, without the reader: a commit that puts lines which existed before under a new check:
of a version (`if is_te_min_version("1.9.0"):`, `if torch_version() >= (2, 4):`), of the API (`hasattr`, `signature`),
or `try:` where the lines import the package. The lines broke on the other side of that version, or with some release.
The reader finds a truth if it has a finding of any kind at one of these lines (or at the statement that they are part
of) in the parent commit, with the nearest recorded release of that side, or any one. Misses are printed with their
lines, to be sorted by class. `--list` prints the truths only. Equal lines of several commits are one truth.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matrix.catalog.versions import parse
from matrix.contract import recording
from matrix.contract.finding import find
from matrix.contract.pairs import recorded, released
from matrix.contract.provider import TORCH, TRANSFORMER_ENGINE, Provider
from matrix.contract.reading import extract_calls
from matrix.contract.recording import MCORE, TE
from matrix.errors import MatrixError
from matrix.provision import package_source

CHECK: Final = re.compile(
    r"(?P<api>hasattr\(|signature\(|^try:)"
    r"|\b(?P<no>not )?(?:is_(?P<package>te|torch)_min_version\(\s*[\"'](?P<text>\d+(?:\.\d+)*)"
    r"|torch_version\(\)\s*(?P<sign>>=|<)\s*\((?P<numbers>\d+, *\d+))"
)
PACKAGES: Final = r"transformer_engine|\bte\.|\btex\.|\btorch\b|\bdist\b"
IMPORTED: Final = r"(from|import) (transformer_engine|torch)\b"
NAMED: Final = re.compile(r"from ((?:transformer_engine|torch)[\w.]*) import (\w[\w ,]*)")
KEYWORD: Final = re.compile(r"^\w+\[[\"'](\w+)[\"']\] = (.*)$")  # kwargs["name"] = value, before: name=value,
HUNK: Final = re.compile(r"^@@ -(\d+)")
FEWEST: Final = 12  # characters of a line that identify it
NEAR: Final = 3  # lines between a moved line and the statement that it is part of
PLACES: Final = {MCORE: "megatron", TE: "transformer_engine/pytorch"}


@dataclass(frozen=True)
class Truth:
    """Lines of a file that break on one side of a version of a provider, until the commit."""

    consumer: str
    commit: str
    path: str
    provider: Provider
    version: str
    is_below: bool  # the side that breaks
    lines: tuple[tuple[int, str], ...]  # of the parent commit

    def releases(self) -> list[str]:
        """Return the nearest recorded release of the side that breaks; all where no version is stated."""
        versions = recording.recorded_surfaces(self.provider)
        if not self.version:
            return [*versions]
        side = [text for text in versions if (parse(text) < parse(self.version)) is self.is_below]
        return side[-1:] if self.is_below else side[:1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mcore", type=Path, required=True, help="a clone of Megatron-LM")
    parser.add_argument("--te", type=Path, required=True, help="a clone of Transformer Engine")
    parser.add_argument("--most", type=int, default=60)
    parser.add_argument("--list", action="store_true", help="print the truths only")
    options = parser.parse_args()
    clones = {MCORE: options.mcore, TE: options.te}
    truths = [truth for package, clone in clones.items() for truth in mined(package, clone)]
    truths = [*{(truth.path, truth.lines[0][1]): truth for truth in truths if truth.releases()}.values()]
    truths = truths[: options.most]
    results = [False if options.list else is_found(truth, clones[truth.consumer]) for truth in truths]
    for truth, is_hit in zip(truths, results, strict=True):
        side = f"{truth.provider.package} {truth.version and truth.releases()[0]}"
        print(
            f"{'found ' if is_hit else 'missed'} {truth.consumer} {truth.commit[:10]} {truth.path} x {side}", flush=True
        )
        for number, text in () if is_hit else truth.lines[:3]:
            print(f"         {number}: {text[:110]}")
    print(f"{sum(results)} of {len(truths)} found")


def mined(package: str, clone: Path) -> Iterator[Truth]:
    """Yield the truths of a clone, the newest commits first."""
    command = ["git", "-C", str(clone), "log", "--no-merges", "-p", "-U6", "--format=commit %H"]
    command += [
        "-G",
        "min_version|torch_version|hasattr|signature|try:|from (torch|transformer_engine)",
        "HEAD",
        "--",
        PLACES[package],
    ]
    commit = path = ""
    hunk: list[str] = []
    for line in [*subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines(), "commit "]:
        if line.startswith(("commit ", "diff ", "@@")):
            yield from of_hunk(package, commit, path, hunk)
            hunk = []
        if line.startswith("commit "):
            commit = line.partition(" ")[2]
        elif line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif line.startswith("@@") or hunk:
            hunk.append(line)


def of_hunk(package: str, commit: str, path: str, hunk: list[str]) -> Iterator[Truth]:
    """Yield the truth of a hunk: removed lines that an added check of a version encloses."""
    if not hunk or not path.endswith(".py"):
        return
    number = int(HUNK.findall(hunk[0])[0]) - 1
    removed: dict[str, tuple[int, int]] = {}  # text -> line, indentation
    for line in hunk[1:]:
        number += line[:1] != "+"
        if line.startswith("-"):
            text = line[1:].strip()
            removed[text] = number, len(line[1:]) - len(line[1:].lstrip())
    yield from of_imports(package, commit, path, removed, [line[1:].strip() for line in hunk[1:] if line[:1] == "+"])
    check, is_else, moved = None, False, []
    for line in hunk[1:]:
        text, indent = line[1:].strip(), len(line[1:]) - len(line[1:].lstrip())
        match = CHECK.search(text) if line.startswith("+") and text.startswith(("if ", "elif ", "try:")) else None
        if match:
            check, border, is_else = match, indent, False
        elif check and indent <= border and text:
            is_else = text.startswith("else")
            check = check if is_else else None
        elif check and line.startswith("+"):
            text = next((kept for kept in (text, KEYWORD.sub(r"\1=\2,", text)) if kept in removed), "")
            is_same = len(text) >= FEWEST and (removed[text][1] < indent or text.endswith(","))
            moved += [(check, is_else, removed[text][0], text)] if is_same else []
    if moved and not any(moved[0][0][0] in text for text in removed):  # a check that moves is no new one
        first, is_else, _, _ = moved[0]
        texts = " ".join([first.string, *(text for *_, text in moved)])
        of_te = first["package"] == "te" or "transformer_engine" in texts
        if first["api"] and not re.search(IMPORTED if first["api"] == "try:" else PACKAGES, texts):
            return
        provider = TRANSFORMER_ENGINE if of_te and package == MCORE else TORCH
        version = first["text"] or (first["numbers"] or "").replace(" ", "").replace(",", ".")
        is_below = bool(first["no"] or first["sign"] == "<") is is_else
        lines = tuple((number, text) for _, part, number, text in moved if part is is_else)
        yield Truth(package, commit, path, provider, version, is_below, lines)


def of_imports(
    package: str, commit: str, path: str, removed: dict[str, tuple[int, int]], added: list[str]
) -> Iterator[Truth]:
    """Yield the truths of imports whose module changes while their names stay."""
    modules = {match[2]: match[1] for text in added if (match := NAMED.match(text))}
    for text, (number, _) in removed.items():
        match = NAMED.match(text)
        if match and modules.get(match[2], match[1]) != match[1] and not (package == TE and match[1][:5] == "trans"):
            provider = TRANSFORMER_ENGINE if match[1].startswith("transformer_engine") else TORCH
            yield Truth(package, commit, path, provider, "", True, ((number, text),))


def is_found(truth: Truth, clone: Path) -> bool:
    """Return whether the reader has a finding at the lines of a truth, in the parent commit."""
    source = package_source.parse(f"{clone}@{truth.commit}~1", truth.consumer)
    try:
        calls = extract_calls(package_source.inspect(source), provider=truth.provider)
    except MatrixError as error:
        print(f"{truth.commit[:10]}: {error}".splitlines()[0])
        return False
    surfaces = [recorded(truth.provider, version) for version in truth.releases()]
    findings = [one for surface in surfaces for one in find(calls, surface, history=released(truth.provider))]
    sites = {finding.call_site.line for finding in findings if finding.call_site.path == truth.path}
    return any(number - NEAR <= line <= number + NEAR for number, _ in truth.lines for line in sites)


if __name__ == "__main__":
    main()
