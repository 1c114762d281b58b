"""Renew the facts of NVIDIA's images from the texts of public pages, which the caller saves as files.

    python -m tests.image_facts https://docs.nvidia.com/.../rel-26-03.html=rel-26-03.txt ...
    python -m tests.image_facts --write URL=FILE ...    add what is new to matrix/ground/catalog/facts/containers.toml

Nothing is fetched. A page is any of: release notes of an NGC container (PyTorch's, or a sibling of the same month), the
software versions of NeMo Framework, the environment or history of a PyTorch image, NVIDIA_REQUIRE_CUDA of nvidia/cuda's
images. Printed are the facts of the pages beside the catalog's, and the facts that neither has.

The exit status is 1 where a page contradicts the catalog. Contradictions and doubtful facts are never written.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matrix.ground.cases.machine_requirements import Fit, fitting
from matrix.ground.catalog.loading import FACTS, load
from matrix.ground.catalog.model import Catalog, Container
from matrix.ground.catalog.schema import Identifier
from matrix.ground.errors import MatrixError

WANTED: Final = ("cuda", "cudnn", "nccl", "flash_attn", "driver_requirement")  # of every image
SIBLING: Final = "medium (sibling container, same month)"
NUMBER: Final = r"(\d+(?:\.\d+)+)"
# An image's environment variables, and their keys in containers.toml.
VARIABLES: Final = {
    "CUDA_VERSION": "cuda",
    "CUDA_DRIVER_VERSION": "cuda_driver_version_in_image",
    "CUDNN_VERSION": "cudnn",
    "NCCL_VERSION": "nccl",
    "TRANSFORMER_ENGINE_VERSION": "te",
}
# The names in release notes. Three numbers at least: "the latest NVIDIA cuDNN 9 libraries" is no version.
CONTENTS: Final = {
    "cudnn": r"cuDNN\W{0,3} (\d+(?:\.\d+){2,})",
    "nccl": r"NCCL\W{0,3} (\d+(?:\.\d+){2,})",
    "flash_attn": rf"flash-attention {NUMBER[:-1]}(?:\.post\d+)?)",
}
# The rows of NeMo's tables.
ROWS: Final = {"CUDA": "cuda", "cuDNN": "cudnn", "NCCL": "nccl", "Megatron Core": "megatron_core"}


@dataclass(frozen=True)
class Page:
    """The text of a page, and where it is from."""

    source: str
    text: str


@dataclass(frozen=True)
class Fact:
    """A fact of an image as a page states it; `doubt` is why a person has to decide, "" without a reason."""

    image: str
    key: str
    value: str
    source: str
    doubt: str = ""
    sibling: bool = False


@dataclass(frozen=True)
class Accepted:
    """The driver branches that nvidia/cuda's images of a CUDA accept besides those that run it directly."""

    cuda: str
    branches: tuple[str, ...]
    source: str


def facts_of(page: Page) -> list[Fact]:
    """Return the facts that a page states."""
    return [*_environment(page), *_release_notes(page), *_nemo(page)]


def _environment(page: Page) -> Iterator[Fact]:
    months = set(re.findall(r"\bNVIDIA_PYTORCH_VERSION=(\d\d\.\d\d)\b", page.text))
    if not months:
        return
    month, several = min(months), "the page has several images" if len(months) > 1 else ""
    for variable, key in VARIABLES.items():
        values = sorted(set(re.findall(rf"(?<![A-Z_]){variable}=(\d+(?:\.\d+)+)", page.text)))
        doubt = "several values" if len(values) > 1 else ""
        if values:
            yield Fact(f"ngc-{month}", key, values[0], page.source, several or doubt)


def _release_notes(page: Page) -> Iterator[Fact]:
    based = re.search(rf"Release (\d\d\.\d\d) is based on (?:NVIDIA )?CUDA {NUMBER}", page.text)
    if not based:
        return
    image, cuda, sibling = f"ngc-{based[1]}", based[2], "Contents of the PyTorch container" not in page.text
    yield Fact(image, "cuda", cuda, page.source, sibling=sibling)
    for key, pattern in CONTENTS.items():
        if content := re.search(pattern, page.text):
            yield Fact(image, key, content[1], page.source, sibling=sibling)
    least = re.search(r"requires NVIDIA Driver release (\d{3}) or later", page.text)
    older = re.findall(r"(\d{3}\.\d+) \(or later R(\d{3})\)", page.text)
    if least:
        text = f"{least[1]} or later"
        if older:
            text += "; on data-center GPUs " + ", ".join(f"{driver}+ (R{branch})" for driver, branch in older)
        about = re.search(rf"not forward-compatible with CUDA {NUMBER}", page.text)
        # NVIDIA's pages repeat the sentence of older releases, with the CUDA of those.
        other = about and not _same(about[1], cuda)
        doubt = f"its sentence on drivers is about CUDA {about[1]}" if about and other else ""
        yield Fact(image, "driver_requirement", text, page.source, doubt, sibling)


def _nemo(page: Page) -> Iterator[Fact]:
    parts = re.split(r"^\W*NeMo Framework (\d\d\.\d\d)\W*$", page.text, flags=re.MULTILINE)
    for month, section in zip(parts[1::2], parts[2::2], strict=True):
        for name, key in ROWS.items():
            if row := re.search(rf"(?:^|\|)\s*{name}\s*\|\s*{NUMBER}", section, flags=re.MULTILINE):
                yield Fact(f"nemo-{month}", key, row[1], page.source)


def accepted_of(page: Page) -> list[Accepted]:
    """Return the lists of driver branches in a page."""
    lists = re.findall(rf"NVIDIA_REQUIRE_CUDA\W{{1,2}}cuda>={NUMBER} (brand=[^\"\n]*)", page.text)
    return [
        Accepted(cuda, tuple(sorted(set(re.findall(r"driver>=(\d{3})\b", rest)))), page.source)
        for cuda, rest in dict(lists).items()
    ]


def _same(version: str, precise: str) -> bool:
    """Return whether one of two versions is the other one, with more numbers."""
    return all(mine == theirs for mine, theirs in zip(version.split("."), precise.split("."), strict=False))


def standing(fact: Fact, image: Container | None) -> str:
    """Return how a fact stands to the catalog: "new", "same", "contradicts ...", "doubtful: ..." or "no such image"."""
    if image is None:
        return "no such image in the catalog"
    known_value = getattr(image, fact.key)
    if known_value is None:
        return f"doubtful: {fact.doubt}" if fact.doubt else "new"
    public = str(known_value).split("+")[0].removeprefix("main:").removeprefix("dev:")
    exact = fact.key == "driver_requirement"
    same = known_value == fact.value if exact else _same(public, fact.value.split("+")[0])
    if same:
        return "same"
    return f"doubtful: {fact.doubt}" if fact.doubt else f"contradicts {known_value}"


def missing(catalog: Catalog, facts: Iterable[Fact]) -> dict[str, list[str]]:
    """Return, for each image, the wanted facts that neither the catalog nor a page has."""
    stated = {(fact.image, fact.key) for fact in facts if not fact.doubt}
    return {
        str(image.id): keys
        for image in catalog.containers
        if (keys := [key for key in WANTED if getattr(image, key) is None and (image.id, key) not in stated])
    }


def disagreements(catalog: Catalog, listed: Accepted) -> Iterator[str]:
    """Yield where the catalog's drivers disagree with a list of accepted branches, or have no answer."""
    image = Container(Identifier(f"cuda-{listed.cuda}"), "", cuda=listed.cuda)
    for driver in catalog.drivers:
        fit = fitting(catalog, image, driver.branch).fit
        accepts = driver.branch in listed.branches
        if fit is not Fit.NATIVE and (fit is Fit.COMPAT) is not accepts:
            verb = "accepted" if accepts else "not accepted"
            yield f"CUDA {listed.cuda}, driver {driver.branch}: {verb}; catalog: {fit.value}"


def written(text: str, facts: Iterable[Fact]) -> str:
    """Return containers.toml with facts added to its images, each with its source. Comments and order stay."""
    for fact in facts:
        start = text.index(f'id = "{fact.image}"\n')
        end = text.find("\n[[container]]", start)
        block = text[start : end if end >= 0 else None]
        lines = [f'{fact.key} = "{fact.value}"']
        if fact.sibling and fact.key != "cuda" and "component_confidence" not in block:
            lines.append(f'# component_confidence = "{SIBLING}"')
        name = f"sibling: {fact.source}" if fact.sibling else fact.source
        rows = [
            "\n".join([*lines, _cited(row, name)]) if row.startswith(("# source = ", "# sources = ")) else row
            for row in block.split("\n")
        ]
        text = text[:start] + "\n".join(rows) + text[start + len(block) :]
    return text


def _cited(row: str, source: str) -> str:
    """Return the line of an image's sources with another one, unless it has that."""
    if source in row:
        return row
    if row.startswith("# source ="):
        return f'{row[:-1]}; {source}"'
    comma = "" if row.endswith("[]") else ", "
    return f'{row[:-1]}{comma}"{source}"]'


def read(argument: str) -> Page:
    """Return the page of an argument URL=FILE. Raises MatrixError for another form and for an unreadable file."""
    source, _, path = argument.rpartition("=")
    if not source:
        raise MatrixError("not a page", got=argument, expected="URL=FILE", fix="save the page's text in a file")
    try:
        return Page(source, Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise MatrixError(f"cannot read {path}: {error}", fix="save the page's text there, in UTF-8") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what pages state, how it stands to the catalog and what is still unknown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", metavar="URL=FILE", help="a page's address, and the file with its text")
    parser.add_argument("--write", action="store_true", help="add the new facts to the table")
    parser.add_argument("--facts", type=Path, default=FACTS, help="the folder of the tables (default: the catalog's)")
    options = parser.parse_args(arguments)
    try:
        catalog, pages = load(options.facts), [read(argument) for argument in options.pages]
    except MatrixError as error:
        print(error, file=sys.stderr)
        return 2
    images = {str(image.id): image for image in catalog.containers}
    facts = [fact for page in pages for fact in facts_of(page)]
    stands = {fact: standing(fact, images.get(fact.image)) for fact in facts}
    for fact, text in stands.items():
        print(f"{fact.image}: {fact.key} {fact.value}: {text} ({fact.source})")
    lists = [listed for page in pages for listed in accepted_of(page)]
    for page in pages:
        if not facts_of(page) and not accepted_of(page):
            print(f"nothing was found in {page.source}")
    differences = [difference for listed in lists for difference in disagreements(catalog, listed)]
    print("\n".join(differences), end="\n" * bool(differences))
    for image, keys in missing(catalog, facts).items():
        print(f"not found: {image}: {', '.join(keys)}")
    if options.write:
        table = options.facts / "containers.toml"
        new_facts = {(fact.image, fact.key): fact for fact, text in reversed(stands.items()) if text == "new"}
        table.write_text(written(table.read_text(encoding="utf-8"), new_facts.values()), encoding="utf-8")
    return 1 if differences or any(text.startswith("contradicts") for text in stands.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
