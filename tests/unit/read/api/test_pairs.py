"""The recorded pairs are what the reader finds, and each of their calls names what reaches it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ask.check.table import listed
from matrix.ground.catalog.reach import Condition
from matrix.ground.catalog.stack import BRIDGE_PAIRS, CALL_PAIRS, CallPair
from matrix.ground.catalog.versions import NONE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.signature_match import matched
from matrix.read.api import pairs, recording
from matrix.read.api.api import Surface
from matrix.read.api.finding import Finding, FindingKind
from matrix.read.api.provider import TORCH, Calls
from matrix.read.api.recording import MCORE, TE, read_file
from matrix.read.api.relevance import relevance
from tests.profiles import PROFILE, examples
from tests.unit.catalogs import real
from tests.unit.read.api.sources import project

RECORD = read_file(pairs.path())
CORE_TE, CORE_TORCH, TE_TORCH = CALL_PAIRS


def versions(axis: str) -> list[str]:
    return [version for word in listed(real(), axis) if (version := word.partition("=")[2]) != NONE]


def rows(pair: CallPair) -> dict[str, dict[str, list[int]]]:
    recorded: dict[str, dict[str, list[int]]] = RECORD["pairs"][pair.consumer][pair.provider]
    return recorded


def recorded_findings() -> Iterator[Finding]:
    for pair in CALL_PAIRS:
        for consumer, releases in rows(pair).items():
            for version in releases:
                yield from pairs.breaking(pair, consumer, version)


def test_every_listed_pair_is_recorded() -> None:
    """A pair without a record costs 8 ms each time that a page is written: `megatrix surface pairs` adds it."""
    sides = {MCORE: versions("mcore"), TE: versions("te"), TORCH.package: recording.recorded_surfaces(TORCH)}
    for pair in CALL_PAIRS:
        consumers = [version for version in sides[pair.consumer] if isinstance(pairs._calls(pair, version), Calls)]
        releases = [
            version for version in sides[pair.provider] if isinstance(pairs._surface(pair.provider, version), Surface)
        ]
        assert list(rows(pair)) == consumers
        assert {tuple(row) for row in rows(pair).values()} == {tuple(releases)}


@pytest.mark.draws
@pytest.mark.parametrize(("pair", "count"), [*zip(CALL_PAIRS, (150, 15, 30), strict=True)])
def test_recorded_pairs_are_what_is_read(pair: CallPair, count: int) -> None:
    """Random pairs; tests/real compares the whole file."""
    source = random.Random(20)
    every = [(consumer, version) for consumer, row in rows(pair).items() for version in row]
    for consumer, version in sorted(source.sample(every, min(len(every), examples(count, PROFILE)))):
        assert pairs.breaking(pair, consumer, version) == pairs.read(pair, consumer, version), (consumer, version)


def test_pair_without_record_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = pairs.breaking(CORE_TE, "0.19.2", "2.17.0")
    monkeypatch.setattr(pairs, "_record", lambda: {"pairs": {}})
    assert pairs.breaking(CORE_TE, "0.19.2", "2.17.0") == known
    assert [one.kind for one in known] == [FindingKind.DEFINITE]


def test_masked_call_is_no_break_of_pair() -> None:
    """ep_combine comes after ep_dispatch, which raises."""
    assert {one.callee.rpartition(".")[2] for one in pairs.breaking(CORE_TE, "0.19.2", "2.17.0")} == {"ep_dispatch"}


def test_other_spelling_is_the_same_pair() -> None:
    assert [one.message for one in pairs.breaking(CORE_TE, "0.8", "1.10")] == [
        one.message for one in pairs.breaking(CORE_TE, "0.8.0", "1.10.0")
    ]


def test_unrecorded_release_has_no_pairs() -> None:
    with pytest.raises(MatrixError, match="no recorded transformer-engine"):
        pairs.breaking(CORE_TE, "0.17.0", "2.14+1234567")


@pytest.mark.parametrize(
    ("mcore", "te", "messages"),
    [
        ("0.7.0", "1.6.0.dev0", []),
        ("0.8.0", "1.8.0.dev0", []),
        ("0.17.0", "2.14+71bbefb", []),
        (
            "0.19.2",
            "2.14+71bbefb",
            [
                "GroupedLinear.__init__() got an unexpected keyword argument 'single_grouped_weight'",
                "cannot import name 'ep' from 'transformer_engine.pytorch'; swallowed: HAVE_TE_EP = False",
            ],
        ),
    ],
)
def test_engines_of_nemo_images_are_judged(mcore: str, te: str, messages: list[str]) -> None:
    """Each with the core of its image; a build before the release lacks what the guard expects of the release."""
    assert [one.message for one in pairs.breaking(CORE_TE, mcore, te)] == messages
    assert [one.message for one in pairs.read(CORE_TE, mcore, te)] == messages


def test_record_is_deterministic() -> None:
    recorded = pairs.encode({MCORE: ["0.19.2"], TE: ["2.17.0"]})
    assert pairs.encode({MCORE: ["0.19.2"], TE: ["2.17.0", "2.14+1234567"]}) == recorded


def test_build_of_torch_has_no_pairs() -> None:
    """NVIDIA's containers have such a torch: the answer needs no look at the records, which takes 80 ms."""
    with pytest.raises(MatrixError, match=r"its API is not recorded\n  got:      torch 2\.4\.0a0\+3bcc3cddb5"):
        pairs.breaking(CORE_TORCH, "0.8.0", "2.4.0a0+3bcc3cddb5")
    with pytest.raises(MatrixError, match=r"the calls of megatron-core 0\.18\.1 into it are not recorded"):
        pairs.breaking(CORE_TORCH, "0.18.1", "2.6.0")


def test_what_upstream_means_is_no_break() -> None:
    """all_gather_object(list, group) gathers a parameter group, and ring_exchange is in no release of torch."""
    breaks = pairs.breaking(CORE_TORCH, "0.19.2", "2.9.1")
    assert [one.callee for one in breaks if one.kind is FindingKind.DEFINITE] == [
        "torch.distributed._symmetric_memory.get_mem_pool"
    ]
    definite = {one.callee for one in pairs.breaking(CORE_TORCH, "0.18.2", "2.6.0") if one.kind is FindingKind.DEFINITE}
    assert definite == {"torch.distributed.checkpoint.load", "torch.float8_e8m0fnu"}


def test_every_call_names_what_reaches_it() -> None:
    """A failure of the catalog has the same exception, or contract.toml has the function or the imported module."""
    entries = [one for one in real().failures if one.contract]
    for one in {one for one in recorded_findings() if one.kind is FindingKind.DEFINITE}:
        owned = any(
            matched(each, Outcome(OutcomeKind.RAISED, chain=(Raised(one.error, one.message),))) for each in entries
        )
        assert owned or any(way.covers(one) for way in relevance().reached_by), one


def test_every_fact_of_reach_is_used() -> None:
    of_bridge = pairs.read(BRIDGE_PAIRS[0], "0.6.2", "0.18.2")  # read where a stack names it
    sites = {one.line for one in (*recorded_findings(), *of_bridge)}
    called, imported = {site.function for site in sites}, {site.path for site in sites if not site.function}
    for fact in relevance().reached_by:
        assert {*fact.functions} <= called, fact
        assert {*fact.modules} <= imported, fact
        assert all(map(Condition.parse, fact.arguments)), fact
        assert fact.reason


@pytest.mark.parametrize(
    ("te", "torch", "messages"),
    [
        ("1.9.0", "2.11.0", ["cannot import name '_type_utils' from 'torch.onnx'"]),
        ("1.9.0+e79d915", "2.11.0", ["cannot import name '_type_utils' from 'torch.onnx'"]),
        ("1.9.0", "2.4.1", []),
        ("1.13.0", "2.8.0", []),
        ("2.0.0", "2.15.0", []),
        ("2.14.0", "2.5.1", ["No module named 'torch.distributed.fsdp._fully_shard'"]),
        ("2.14.0", "2.13.0", []),
    ],
)
def test_imports_of_engines_are_compared_with_torch(te: str, torch: str, messages: list[str]) -> None:
    """The first line that fails masks the others: transformer_engine.pytorch is not imported."""
    findings = pairs.breaking(TE_TORCH, te, torch)
    assert [one.message for one in findings] == messages
    assert all(not one.call_site.function and one.packages == (TE, TORCH.package) for one in findings)


def test_calls_without_a_use_that_breaks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later torch may lack what was left out of the record of the calls."""
    calls = replace(recording.recorded_calls(TORCH, "1.9.0", TE), fitting=["torch.onnx:_type_utils"])
    monkeypatch.setattr(pairs, "_calls", lambda pair, version: calls if pair == TE_TORCH else MatrixError("none"))
    assert pairs.encode({TE: ["1.9.0"], TORCH.package: ["2.4.1"]})
    with pytest.raises(MatrixError, match="recorded without a use that breaks") as raised:
        pairs.encode({TE: ["1.9.0"], TORCH.package: ["2.11.0"]})
    assert raised.value.got == "torch.onnx:_type_utils is not in torch 2.11.0"


def test_uses_that_no_release_breaks_are_left_out() -> None:
    source = "import torch\nfrom torch.onnx import _type_utils\ntorch.empty(1)\ntorch.optim.Adam([])\n"
    trimmed = pairs.trimmed(project(source, TORCH), TORCH)
    assert {use.path for use in trimmed.uses} == {"torch.onnx:_type_utils", "torch:optim.Adam"}
    assert trimmed.fitting == ["torch:", "torch:empty"]


@pytest.mark.parametrize(
    ("pair", "consumer", "provider", "callee", "end"),
    [
        (CORE_TE, "0.10.0", "2.2.0", "attention.FusedRoPEFunc", "ValueError TransformerConfig.__post_init__"),
        (CORE_TE, "0.12.0", "2.4.0", "attention.FusedRoPEFunc", "ValueError TransformerConfig.__post_init__"),
        (CORE_TE, "0.19.0", "2.19.0", "ep.ep_bootstrap", ""),
    ],
)
def test_caught_exception_has_its_end(pair: CallPair, consumer: str, provider: str, callee: str, end: str) -> None:
    """The truths that were silent or possible; ep_bootstrap raises itself, as _BOOTSTRAPPED starts False."""
    [finding] = [one for one in pairs.breaking(pair, consumer, provider) if one.callee.endswith(callee)]
    assert finding.kind is FindingKind.DEFINITE
    assert (f"{finding.end.exception} {finding.end.site.function}" if finding.end else "") == end


def test_refusals_of_newer_features_are_recorded() -> None:
    """`check` reports them for a job with the option; `contract` does not count them as breaks."""
    findings = pairs.breaking(CORE_TE, "0.12.0", "1.10.0")
    [finding] = [one for one in findings if one.callee.endswith("permutation.moe_permute")]
    assert finding.kind is FindingKind.SILENTLY_OFF
    assert finding.end
    assert finding.end.site.function == "TransformerConfig.__post_init__"
