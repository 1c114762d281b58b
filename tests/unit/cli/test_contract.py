"""`megatrix contract` and `megatrix surface record` on the command line."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.cli import contract
from matrix.cli.main import add_parser
from matrix.ground.catalog.versions import format_ranges
from matrix.ground.errors import MatrixError
from matrix.read.api.finding import Finding, FindingKind
from matrix.read.api.provider import TORCH, Site
from tests.schemas import items_of
from tests.unit.read.api.test_sides import commit, engine, megatron  # noqa: F401 - fixtures


def run(*arguments: str) -> int:
    top = argparse.ArgumentParser()
    commands = top.add_subparsers(required=True)
    for name in ("contract", "surface"):
        add_parser(commands, name)
    parsed = top.parse_args(arguments)
    status: int = parsed.command(parsed)
    return status


def test_json_has_each_finding(capsys: pytest.CaptureFixture[str]) -> None:
    status = run("contract", "--mcore", "094d66b488", "--te", "1.8.0+37280ec", "--json")
    lines = items_of(capsys.readouterr().out, "contract")
    assert status == 1
    assert {"mcore", "te", "callee", "call_site", "guard", "kind", "message", "signature", "exception"} == set(lines[0])
    assert {("definite", "get_cpu_offload_context() takes from 0 to 4 positional arguments but 5 were given"),
            ("definite", "initialize_ub() got an unexpected keyword argument 'tp_size'")} == {
        (line["kind"], line["message"]) for line in lines}  # fmt: skip


def test_the_table_groups_pairs_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    status = run("contract", "--te", "1.8")
    out = capsys.readouterr().out
    assert status == 0  # many pairs: no verdict
    assert "initialize_ub() got an unexpected keyword argument 'tp_size'" in out
    assert "megatron-core 0.4.0 .. 0.19.2  x  Transformer Engine 1.8" in out
    assert out.startswith("27 pairs: ")  # without the withdrawn 0.18.1 and 0.19.1


def test_a_pair_without_findings_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("contract", "--mcore", "0.8.0", "--te", "1.9.0") == 0
    assert capsys.readouterr().out == "1 pair: 0 definite, 0 misbound, 0 possible, 0 silently-off\n"


def test_a_pull_request_is_checked_against_a_te(
    megatron: Path,  # noqa: F811
    engine: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    commit(megatron)
    assert run("contract", "--mcore", f"{megatron}@HEAD", "--te", str(engine)) == 1
    assert "get() takes 1 positional argument but 2 were given" in capsys.readouterr().out


def test_an_unrecorded_version_is_an_error() -> None:
    with pytest.raises(MatrixError, match="no recorded transformer-engine"):
        run("contract", "--mcore", "0.9.0", "--te", "3.1")


def test_a_truncated_surface_file_is_an_error(engine: Path, tmp_path: Path) -> None:  # noqa: F811
    output = tmp_path / "te.json.gz"
    run("surface", "record", str(engine), "-o", str(output))
    output.write_bytes(output.read_bytes()[:-20])
    with pytest.raises(MatrixError, match="damaged or cut short"):
        run("contract", "--mcore", "0.9.0", "--te", str(output))


def test_versions_are_printed_as_spans() -> None:
    known = ["1.0", "1.1", "1.2", "2.0"]
    assert format_ranges(["1.0", "1.1", "2.0"], known) == "1.0 .. 1.1, 2.0"
    assert format_ranges(["1.9+local"], known) == "1.9+local"


FORK = "from megatron.core import parallel_state\nparallel_state.initialize_model_parallel(gone=1)\n"


@pytest.fixture
def fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fork").mkdir()
    (tmp_path / "fork/train.py").write_text(FORK)
    return tmp_path / "fork"


def test_consumer_gets_a_table_of_releases(fork: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("contract", "--consumer", str(fork)) == 0  # all releases: no verdict
    out = capsys.readouterr().out
    assert out.splitlines()[1:3] == ["0.4.0 .. 0.19.2  1 definite", ""]
    assert "each release has a break" in out
    assert "initialize_model_parallel() got an unexpected keyword argument 'gone'\n    at train.py:2" in out


def test_consumer_is_a_gate_for_chosen_releases(fork: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("contract", "--consumer", str(fork), "--against", "megatron-core==0.16.1", "--json") == 1
    (line,) = items_of(capsys.readouterr().out, "contract")
    assert (line["consumer"], line["mcore"], line["call_site"]) == ("fork", "0.16.1", "train.py:2")

    (fork / "train.py").write_text(FORK.replace("gone", "context_parallel_size"))
    assert run("contract", "--consumer", str(fork), "--against", "megatron-core>=0.16,<0.18") == 0
    assert "0.16.0 .. 0.17.1  nothing" in capsys.readouterr().out


def test_annotations_name_the_file(fork: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("contract", "--consumer", "fork", "--against", "megatron-core>=0.19", "--format", "github") == 1
    assert capsys.readouterr().out.startswith(
        "::error file=fork/train.py,line=2,title=definite with megatron-core 0.19.0 .. 0.19.2::megatron.core"
    )

    assert run("contract", "--consumer", "fork", "--against", "megatron-core>=0.19", "--format", "sarif") == 1
    assert json.loads(capsys.readouterr().out)["version"] == "2.1.0"


def test_megatron_core_is_a_consumer_of_torch(capsys: pytest.CaptureFixture[str]) -> None:
    """NVIDIA/Megatron-LM#4457."""
    status = run("contract", "--consumer", "megatron-core==0.19.0", "--against", "torch==2.6.0", "--json")
    found = items_of(capsys.readouterr().out, "contract")

    assert status == 1
    assert ("0.19.0", "2.6.0", "load() got an unexpected keyword argument 'no_dist'") in {
        (one["mcore"], one["torch"], one["message"]) for one in found
    }


@pytest.mark.parametrize("arguments", [("--consumer", ".", "--te", "2.0.0"), ("--against", "torch")])
def test_options_that_exclude_one_another(arguments: tuple[str, ...]) -> None:
    with pytest.raises(MatrixError):
        run("contract", *arguments)


def test_everything_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    run("contract", "--te", "1.4", "--all")
    out = capsys.readouterr().out
    assert "29 pairs: " in out
    assert "folded" not in out
    assert "masked: megatron/core/extensions/transformer_engine.py" in out

    run("contract", "--te", "1.4")
    out = capsys.readouterr().out
    assert "27 pairs: " in out
    assert "masked by" not in out
    assert "lost: CUDA graphs of TE layers" in out


def test_annotations_start_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fork").mkdir()
    monkeypatch.chdir(tmp_path)
    folders = [contract._folder(project) for project in ("./fork", "./fork@HEAD", ".", "/", "missing.whl")]
    assert folders == ["fork/", "fork/", "", "", ""]


DECLARED = """\
[project]
name = "fork"
dependencies = ["torch>=2.6,<2.8"]
[project.optional-dependencies]
megatron = ["megatron-core[mlm]<0.17,>=0.16.0a0 ; sys_platform == 'linux'", "torch==2.6.0"]
mac = ["transformer-engine<2 ; sys_platform == 'darwin'"]
"""


def test_declared_range_is_the_default(fork: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fork / "pyproject.toml").write_text(DECLARED)
    (fork / "train.py").write_text(FORK + "import torch\n")

    assert run("contract", "--consumer", str(fork), "--json") == 1
    versions = {line.get("mcore") for line in items_of(capsys.readouterr().out, "contract")}
    assert versions == {"0.16.0", "0.16.1"}


def test_override_is_no_failure_of_a_gate(fork: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The provider may never call it with this object."""
    code = "from megatron.core.transformer.transformer_layer import TransformerLayer\n"
    (fork / "train.py").write_text(
        f"{code}class Mine(TransformerLayer):\n    def _forward_attention(self, states): ...\n"
    )

    assert run("contract", "--consumer", str(fork), "--against", "megatron-core==0.16.1", "--json") == 0
    assert [line["kind"] for line in items_of(capsys.readouterr().out, "contract")] == ["override"]


def test_pairs_name_their_consumer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("contract", "--consumer", "transformer-engine==1.13.0", "--against", "torch==2.1.2") == 1
    out = capsys.readouterr().out
    assert "    TE 1.13.0  x  torch 2.1.2\n" in out
    assert "megatron-core" not in out


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

    assert contract.table(findings, CORES, ENGINES).splitlines() == [
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

    assert contract.table([override], CORES[:1], ENGINES[:1]).splitlines()[0] == (
        "1 pair: 0 definite, 0 misbound, 1 override, 0 possible, 0 silently-off"
    )


def test_lines_of_the_catalog_follow_an_entry() -> None:
    text = contract.table([FINDING], CORES, ENGINES, known=lambda finding: [f"known: {finding.callee}"])

    assert "    known: transformer_engine.pytorch.get\n" in text


def test_neighbours_that_break_alike_are_one_row() -> None:
    """Newest first; a release that breaks otherwise stands between two rows."""
    findings = [replace(TORCH_FINDING, provider=version) for version in ("2.1.0", "2.3.0")]
    findings.append(replace(TORCH_FINDING, provider="2.3.0", message="another", kind=FindingKind.POSSIBLE))
    versions = ["2.0.0", "2.1.0", "2.2.0", "2.3.0", "2.4.0", "2.5.0"]

    lines = contract.releases(findings, ["fork"], versions, TORCH, whole=False).splitlines()

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

    lines = contract.releases(findings, ["fork"], ["2.1.0", "2.2.0", "2.3.0"], TORCH, whole=False).splitlines()

    assert [line.strip() for line in lines if line.strip() in ("old", "lasting", "later")] == [
        "lasting",
        "later",
        "old",
    ]


def test_what_nobody_runs_is_folded_and_counted() -> None:
    rare = replace(FINDING, provider="1.0.0", implausible="TE 1.0.0 is 900 days older")
    masked = replace(FINDING, masked="adapter.py:3: raises before")

    text = contract.folded([FINDING, rare, masked], CORES, ENGINES, lambda finding: ())

    assert text.splitlines()[0] == "6 pairs: 1 definite, 0 misbound, 0 possible, 0 silently-off"
    assert text.splitlines()[-1] == (
        "folded (--all shows them): 1 findings in 1 pair with a Transformer Engine more than 365 days older than the "
        "core; 1 that come after another break of the same pair, or name what no recorded release has"
    )


def test_breaks_of_near_releases_come_first() -> None:
    """core 0.16.0 is nearer to TE 2.10 than to 2.6."""
    far = replace(FINDING, consumer="0.16.0", provider="2.6.0", callee="far")
    near = replace(FINDING, consumer="0.16.0", provider="2.10.0", callee="near")

    lines = contract.folded([far, near], ["0.16.0"], ["2.6.0", "2.10.0"], lambda finding: ()).splitlines()

    assert [line for line in lines if line in ("  far", "  near")] == ["  near", "  far"]


def test_what_most_pairs_lose_comes_first() -> None:
    """_SplitAlongDim: no option turns it on, and no release of TE since 2.3 has it there."""
    rare = replace(FINDING, kind=FindingKind.SILENTLY_OFF, callee="transformer_engine.pytorch.rare")
    frequent = [replace(rare, callee="transformer_engine.pytorch.frequent", provider=version) for version in ENGINES]

    text = contract.table([rare, *frequent], CORES, ENGINES)

    assert text.index("frequent") < text.index("rare")
