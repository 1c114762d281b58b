"""Findings of the contract level as text."""

from __future__ import annotations

from dataclasses import replace

from matrix.read.api.finding import Finding, FindingKind
from matrix.read.api.provider import TORCH
from matrix.read.api.uses import Site
from matrix.show import contract_table

FINDING = Finding(
    "0.16.0",
    "2.7.0",
    "transformer_engine.pytorch.get",
    Site("megatron/core/adapter.py", 12, "run"),
    "config.fp8",
    FindingKind.DEFINITE,
    "get() takes 1 positional argument but 2 were given",
    "(a)",
    "TypeError",
)
TORCH_FINDING = replace(FINDING, packages=("fork", "torch"), consumer="fork")
CORES, ENGINES = ["0.16.0", "0.17.0"], ["2.6.0", "2.7.0", "2.8.0"]


def test_same_break_of_several_pairs_is_one_entry() -> None:
    findings = [replace(FINDING, provider=te, consumer=core) for core in CORES for te in ENGINES[1:]]

    assert contract_table.table(findings, CORES, ENGINES).splitlines() == [
        "6 pairs: 4 definite, 0 misbound, 0 possible, 0 silently-off",
        "",
        "definite: the line raises the exception whenever it is reached",
        "",
        "  transformer_engine.pytorch.get",
        "    get() takes 1 positional argument but 2 were given",
        "    at megatron/core/adapter.py:12 run, where config.fp8",
        "    signature (a)",
        "    megatron-core 0.16.0 .. 0.17.0  x  Transformer Engine 2.7.0 .. 2.8.0",
    ]


def test_rare_kinds_are_counted_where_they_occur() -> None:
    override = replace(FINDING, kind=FindingKind.OVERRIDE)

    assert contract_table.table([override], CORES[:1], ENGINES[:1]).splitlines()[0] == (
        "1 pair: 0 definite, 0 misbound, 1 override, 0 possible, 0 silently-off"
    )


def test_lines_of_the_catalog_follow_an_entry() -> None:
    text = contract_table.table([FINDING], CORES, ENGINES, known=lambda finding: [f"known: {finding.callee}"])

    assert "    known: transformer_engine.pytorch.get\n" in text


def test_neighbours_that_break_alike_are_one_row() -> None:
    """Newest first; a release that breaks otherwise stands between two rows."""
    findings = [replace(TORCH_FINDING, provider=version) for version in ("2.1.0", "2.3.0")]
    findings.append(replace(TORCH_FINDING, provider="2.3.0", message="another", kind=FindingKind.POSSIBLE))
    versions = ["2.0.0", "2.1.0", "2.2.0", "2.3.0", "2.4.0", "2.5.0"]

    lines = contract_table.releases(findings, ["fork"], versions, TORCH, whole=False).splitlines()

    assert lines[:8] == [
        "torch           breaks",
        "2.4.0 .. 2.5.0  nothing",
        "2.3.0           1 definite, 1 possible",
        "2.2.0           nothing",
        "2.1.0           1 definite",
        "2.0.0           nothing",
        "",
        "no break found: 2.0.0, 2.2.0, 2.4.0 .. 2.5.0",
    ]
    assert "    torch 2.1.0, 2.3.0" in lines  # without a consumer: a project has one version


def test_breaks_of_the_newest_release_come_first() -> None:
    findings = [
        replace(TORCH_FINDING, provider=version, callee=callee)
        for version, callee in (("2.1.0", "old"), ("2.1.0", "lasting"), ("2.3.0", "lasting"), ("2.2.0", "later"))
    ]

    lines = contract_table.releases(findings, ["fork"], ["2.1.0", "2.2.0", "2.3.0"], TORCH, whole=False).splitlines()

    assert [line.strip() for line in lines if line.strip() in ("old", "lasting", "later")] == [
        "lasting",
        "later",
        "old",
    ]


def test_what_nobody_runs_is_folded_and_counted() -> None:
    rare = replace(FINDING, provider="1.0.0", implausible="TE 1.0.0 is 900 days older")
    masked = replace(FINDING, masked="adapter.py:3: raises before")

    text = contract_table.folded([FINDING, rare, masked], CORES, ENGINES, lambda finding: ())

    assert text.splitlines()[0] == "6 pairs: 1 definite, 0 misbound, 0 possible, 0 silently-off"
    assert text.splitlines()[-1] == (
        "folded (--all shows them): 1 findings in 1 pair with a Transformer Engine more than 365 days older than the "
        "core; 1 that come after another break of the same pair, or name what no recorded release has"
    )


def test_breaks_of_near_releases_come_first() -> None:
    """core 0.16.0 is nearer to TE 2.10 than to 2.6."""
    far = replace(FINDING, consumer="0.16.0", provider="2.6.0", callee="far")
    near = replace(FINDING, consumer="0.16.0", provider="2.10.0", callee="near")

    lines = contract_table.folded([far, near], ["0.16.0"], ["2.6.0", "2.10.0"], lambda finding: ()).splitlines()

    assert [line for line in lines if line in ("  far", "  near")] == ["  near", "  far"]


def test_what_most_pairs_lose_comes_first() -> None:
    """_SplitAlongDim: no option turns it on, and no release of TE since 2.3 has it there."""
    rare = replace(FINDING, kind=FindingKind.SILENTLY_OFF, callee="transformer_engine.pytorch.rare")
    frequent = [replace(rare, callee="transformer_engine.pytorch.frequent", provider=version) for version in ENGINES]

    text = contract_table.table([rare, *frequent], CORES, ENGINES)

    assert text.index("frequent") < text.index("rare")
