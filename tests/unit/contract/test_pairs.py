"""The recorded pairs are what the reader finds, and each of their calls names what reaches it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.catalog.reach import Condition
from matrix.catalog.versions import NONE
from matrix.check.table import listed
from matrix.contract import pairs, recording
from matrix.contract.finding import Finding, FindingKind
from matrix.contract.provider import TORCH
from matrix.contract.recording import TE, read_file
from matrix.contract.relevance import relevance
from matrix.errors import MatrixError
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.signature_match import matched
from tests.unit.catalogs import real

RECORD = read_file(pairs.path())


def versions(axis: str) -> list[str]:
    return [version for word in listed(real(), axis) if (version := word.partition("=")[2]) != NONE]


def recorded_findings() -> Iterator[Finding]:
    for package, cores in RECORD["pairs"].items():
        for mcore, releases in cores.items():
            for version in releases:
                yield from pairs.breaking(mcore, version, package)


def test_every_listed_pair_is_recorded() -> None:
    """A pair without a record costs 8 ms each time that a page is written: `megatrix surface pairs` adds it."""
    listed_versions = {
        TE: (versions("mcore"), versions("te")),
        TORCH.package: (versions("mcore"), recording.recorded_surfaces(TORCH)),
    }
    assert RECORD["pairs"].keys() == listed_versions.keys()
    for package, sides in listed_versions.items():
        provider = pairs.PROVIDED[package]
        cores, releases = (
            [version for version in side if pairs._problem(provider, version, is_core=is_core) is None]
            for is_core, side in zip((True, False), sides, strict=True)
        )
        assert list(RECORD["pairs"][package]) == cores
        assert {tuple(row) for row in RECORD["pairs"][package].values()} == {tuple(releases)}


@pytest.mark.parametrize(("package", "count"), [(TE, 150), (TORCH.package, 15)])
def test_recorded_pairs_are_what_is_read(package: str, count: int) -> None:
    """Random pairs; tests/real compares the whole file."""
    source = random.Random(20)
    every = [(mcore, version) for mcore, row in RECORD["pairs"][package].items() for version in row]
    for mcore, version in sorted(source.sample(every, count)):
        assert pairs.breaking(mcore, version, package) == pairs.read(mcore, version, package), (mcore, version)


def test_pair_without_record_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = pairs.breaking("0.19.2", "2.17.0")
    monkeypatch.setattr(pairs, "_record", lambda: {"pairs": {}})
    assert pairs.breaking("0.19.2", "2.17.0") == known
    assert [one.kind for one in known] == [FindingKind.DEFINITE]


def test_masked_call_is_no_break_of_pair() -> None:
    """ep_combine comes after ep_dispatch, which raises."""
    assert {one.callee.rpartition(".")[2] for one in pairs.breaking("0.19.2", "2.17.0")} == {"ep_dispatch"}


def test_other_spelling_is_the_same_pair() -> None:
    assert [one.message for one in pairs.breaking("0.8", "1.10")] == [
        one.message for one in pairs.breaking("0.8.0", "1.10.0")
    ]


def test_unrecorded_release_has_no_pairs() -> None:
    with pytest.raises(MatrixError, match="no recorded transformer-engine"):
        pairs.breaking("0.17.0", "2.14+1234567")


@pytest.mark.parametrize(
    ("mcore", "te", "messages"),
    [
        ("0.7.0", "1.6.0.dev0", []),
        ("0.8.0", "1.8.0.dev0", []),
        ("0.17.0", "2.14+71bbefb", []),
        (
            "0.19.2",
            "2.14+71bbefb",
            ["GroupedLinear.__init__() got an unexpected keyword argument 'single_grouped_weight'"],
        ),
    ],
)
def test_engines_of_nemo_images_are_judged(mcore: str, te: str, messages: list[str]) -> None:
    """Each with the core of its image; a build before the release lacks what the guard expects of the release."""
    assert [one.message for one in pairs.breaking(mcore, te)] == messages
    assert [one.message for one in pairs.read(mcore, te)] == messages


def test_record_is_deterministic() -> None:
    assert pairs.encode(["0.19.2"], {TE: ["2.17.0", "2.14+1234567"]}) == pairs.encode(["0.19.2"], {TE: ["2.17.0"]})


def test_build_of_torch_has_no_pairs() -> None:
    """NVIDIA's containers have such a torch: the answer needs no look at the records, which takes 80 ms."""
    with pytest.raises(MatrixError, match=r"its API is not recorded\n  got:      torch 2\.4\.0a0\+3bcc3cddb5"):
        pairs.breaking("0.8.0", "2.4.0a0+3bcc3cddb5", TORCH.package)
    with pytest.raises(MatrixError, match=r"the calls of megatron-core 0\.18\.1 into it are not recorded"):
        pairs.breaking("0.18.1", "2.6.0", TORCH.package)


def test_what_upstream_means_is_no_break() -> None:
    """all_gather_object(list, group) gathers a parameter group, and ring_exchange is in no release of torch."""
    assert pairs.breaking("0.19.2", "2.9.1", TORCH.package) == ()
    assert [one.message for one in pairs.breaking("0.18.2", "2.6.0", TORCH.package)] == [
        "load() got an unexpected keyword argument 'no_dist'"
    ]


def test_every_call_names_what_reaches_it() -> None:
    """A failure of the catalog has the same exception, or contract.toml has the function or the imported module."""
    entries = [one for one in real().failures if one.contract]
    for one in {one for one in recorded_findings() if one.kind is FindingKind.DEFINITE}:
        owned = any(matched(each, Outcome(OutcomeKind.RAISED, chain=(one.raised,))) for each in entries)
        assert owned or any(way.covers(one.call_site) for way in relevance().reached_by), one


def test_every_fact_of_reach_is_used() -> None:
    sites = {one.call_site for one in recorded_findings()}
    called, imported = {site.function for site in sites}, {site.path for site in sites if not site.function}
    for fact in relevance().reached_by:
        assert {*fact.functions} <= called, fact
        assert {*fact.modules} <= imported, fact
        assert all(map(Condition.parse, fact.arguments)), fact
        assert fact.reason
