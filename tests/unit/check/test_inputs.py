"""Files as people have them, written after public examples: each with its findings, stated beforehand."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from matrix.check.answer import CheckResult, Standing
from matrix.check.checking import Question, check
from matrix.check.declaring import declared_stack, read
from matrix.check.examine import Assumed, assume
from matrix.check.stack import parse_text
from matrix.execution import preflights
from tests.unit.catalogs import real

INPUTS = Path(__file__).with_name("inputs")
BREAK, OPTION, SILENT, VERSION = (
    Standing.WILL_BREAK, Standing.WITH_OPTIONS, Standing.SILENT, Standing.WITH_VERSIONS,
)  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """Versions of the axes torch, mcore, te; certain findings; how others stand; a workaround; the user's options."""

    versions: tuple[str, str, str]
    certain: tuple[str, ...] = ()
    others: dict[str, Standing] = field(default_factory=dict)
    workaround: str = ""
    text: str = ""
    options: dict[str, str] = field(default_factory=dict)


TORCH_2407, TE_2407 = "2.4.0a0+3bcc3cddb5", "1.8.0+37280ec"
EXPECTED = {
    "Dockerfile.save": Expected(
        (TORCH_2407, "0.8.0", TE_2407),
        ("dcp-assertion",),
        {"tp-overlap": OPTION, "long-context": OPTION},
        "megatron-core 0.9.0",
    ),
    "mask.sbatch": Expected(
        (TORCH_2407, "0.8.0", TE_2407),
        ("long-context",),
        {"dcp-assertion": OPTION, "tp-overlap": OPTION},
        "--no-create-attention-mask-in-dataloader",
        options={"host-memory": "880G", "shm": "64G"},
    ),
    "Dockerfile.call": Expected(
        (TORCH_2407, "0.9.0rc0+094d66b", TE_2407), ("cpu-offload-args",), {}, "megatron-core 0.9.0"
    ),
    "overlap.sh": Expected(
        ("2.3.0a0+40ec155e58", "0.7.0", "1.9.0.dev0+f9dd37f"),
        ("tp-overlap", "ub-tp-size"),
        {"ub-multicast": Standing.WORKS},
        "start it with mpirun",
        "driver=470.161.03 sm=8.0 gpus=8",
    ),
    "requirements-rl.txt": Expected(
        ("2.9.1", "0.17.1", "2.9.0"),
        ("cpu-offload-pinned",),
        {"te-norm-shape": Standing.WORKS, "dcp-write-item": Standing.WORKS},
        "Transformer Engine 2.10.0",
    ),
    "uv.lock": Expected(
        ("2.10.0+cu128", "0.15.0", "2.7.0"),
        (),
        {"fsdp-mesh-names": OPTION, "ub-quantization-mode": OPTION},
        "megatron-core 0.15.2",
    ),
    "pylock.toml": Expected(
        ("2.4.1", "0.8.0", "none"), ("dcp-assertion",), {"tp-overlap": Standing.NOT_REACHED}, "torch 2.3.1"
    ),
    "pretrain.sh": Expected(
        ("2.9.1", "0.16.1", "none"),
        ("reset-mask-dropped",),
        {"long-context": Standing.NOT_REACHED, "loss-mask-cache": SILENT, "ub-multicast": VERSION},
    ),
    "nemo.yaml": Expected(("none", "none", "none"), (), {"tp-overlap": VERSION, "long-context": Standing.NOT_REACHED}),
    "environment.yml": Expected(
        ("2.8.0", "0.12.3", "2.2.0"),
        ("dcp-write-item",),
        {"rope-interleaved": OPTION},
        "megatron-core 0.13.0",
    ),
    "Dockerfile.stages": Expected(
        ("2.9.0a0+50eac811a6", "0.15.0", "2.7"),
        (),
        {"ub-quantization-mode": OPTION, "dcp-assertion": Standing.WORKS},
        "Transformer Engine 2.8.0",
    ),
    "nemo.sub": Expected(
        ("2.4.0a0", "0.9.0", "1.10"),
        (),
        {"tp-overlap": OPTION, "long-context": Standing.NOT_REACHED},
        "megatron-core 0.10.0",
    ),
}


def checked(name: str, expected: Expected) -> CheckResult:
    said = parse_text(real(), expected.text) if expected.text else []
    stack, jobs = declared_stack(real(), read([str(INPUTS / name)]), said)
    assumed = assume(expected.options, preflights.installed()) if expected.options else Assumed()
    return check(real(), stack, Question(jobs, assumed=assumed), {})


@pytest.mark.parametrize("name", EXPECTED)
def test_file_alone_names_what_breaks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is executed."""
    monkeypatch.setattr(subprocess, "Popen", None)
    expected = EXPECTED[name]

    result = checked(name, expected)

    cell = result.stack.cell
    assert (cell.torch, cell.mcore, cell.te) == expected.versions
    assert tuple(sorted(one.failure.id for one in result.failures if one.certain)) == tuple(sorted(expected.certain))
    found = {str(one.failure.id): one.standing for one in result.failures}
    assert {id: found[id] for id in expected.others} == expected.others
    texts = [each.text for one in result.failures for each in one.workarounds]
    assert not expected.workaround or any(
        text.startswith(expected.workaround) or expected.workaround in text for text in texts
    )
    assert result.stack.sources.get("mcore", "").startswith(str(INPUTS)) or cell.mcore == "none" or name == "nemo.sub"


def test_there_are_twelve_inputs() -> None:
    assert {path.name for path in INPUTS.iterdir()} == EXPECTED.keys()
    assert len(EXPECTED) >= 12
