"""`megatrix contract` and `megatrix surface record` on the command line."""

import argparse
import json
from pathlib import Path

import pytest

from matrix.cli import contract, surface
from matrix.ground.catalog.versions import spans
from matrix.ground.errors import MatrixError
from tests.schemas import items_of
from tests.unit.read.api.test_sides import commit, engine, megatron  # noqa: F401 - fixtures


def run(*arguments: str) -> int:
    top = argparse.ArgumentParser()
    commands = top.add_subparsers(required=True)
    contract.add_parser(commands)
    surface.add_parser(commands)
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
    assert spans(["1.0", "1.1", "2.0"], known) == "1.0 .. 1.1, 2.0"
    assert spans(["1.9+local"], known) == "1.9+local"


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
    assert "no break found: in no release" in out
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
