"""The options that select cases and levels, and the request that they make."""

from __future__ import annotations

import argparse
import os

from matrix.catalog.failure import Expectation, Level
from matrix.catalog.model import Catalog
from matrix.planning.case_request import CaseRequest, InstalledBase, PackageSource, requested_cases, requested_levels
from matrix.planning.host_cases import LABEL
from matrix.provision import host, installed, sources
from matrix.verdicts.planned import Planned


def add_cases(parser: argparse.ArgumentParser) -> None:
    """Add the options that select cases."""
    parser.add_argument(
        "--here", action="store_true", help="select the cases for the environment that megatrix itself is installed in"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--select", metavar="EXPR", help='select from all cells: "mcore==0.8.* and torch>=2.4 and case==pp2"'
    )
    group.add_argument("--within", metavar="EXPR", help='select from the night: "base==torch-2.4.0"')
    group.add_argument(
        "--case", action="append", metavar="KEY", help='select one case, "CELL FAILURE CASE LEVEL"; may be repeated'
    )
    parser.add_argument("--mcore", metavar="SOURCE", help=f"megatron-core under test: {sources.FORMS}")
    parser.add_argument("--te", metavar="SOURCE", help="Transformer Engine under test, with --case")
    parser.add_argument("--writer", metavar="SOURCE", help="megatron-core that writes the checkpoint, with --case")
    parser.add_argument(
        "--compile", action="store_true", help="build the Transformer Engine of --te with its extension; needs nvcc"
    )
    parser.add_argument(
        "--expect",
        choices=[expectation.value for expectation in Expectation],
        help="expected result for --mcore (default: works; for a release, as in the catalog)",
    )
    parser.add_argument(
        "--level",
        action="append",
        choices=[level.value for level in Level],
        help="select this level only; may be repeated (default: every level that can run)",
    )


def request_of(parsed: argparse.Namespace) -> CaseRequest:
    """Return the request that the options make on this machine."""
    on_cluster = getattr(parsed, "engine", "") == "slurm"
    texts = {"source": parsed.mcore, "te_source": parsed.te, "writer_source": parsed.writer}
    has_gpu = not parsed.level and not on_cluster and bool(host.look().listed)
    return CaseRequest(
        requested_levels(parsed.level or (), on_cluster=on_cluster, has_gpu=has_gpu),
        parsed.select or "",
        parsed.within or "",
        tuple(parsed.case or ()),
        {name: text for name, text in texts.items() if text},
        parsed.compile,
        Expectation(parsed.expect) if parsed.expect else None,
        parsed.here,
        on_cluster,
    )


def selected(known: Catalog, request: CaseRequest) -> tuple[list[Planned], str]:
    """Return the cases of a request, and a label for the run. Raises MatrixError."""
    return requested_cases(known, request, _inspected, _installed)


def _inspected(field: str, text: str) -> PackageSource:
    contents = sources.inspect(sources.parse(text, "transformer-engine" if field == "te_source" else "megatron-core"))
    on_pypi = contents.source.kind is sources.SourceKind.PYPI
    return PackageSource(str(contents.source), contents.version, contents.source.revision if on_pypi else "")


def _installed() -> InstalledBase:
    environment = installed.current()
    label, te_line = (os.environ.get(name, "") for name in (LABEL, "MEGATRIX_TE"))
    return InstalledBase(environment.packages, environment.minor, label, te_line)
