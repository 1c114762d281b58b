from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ask.check.checking import Question, check
from matrix.ask.check.user_stack import UserStack
from matrix.ask.fit.candidates import Candidate, axes
from matrix.ask.fit.fit_answer import ReleaseSearch
from matrix.ask.fit.rules import Rejection, Rules, stack_of
from tests.profiles import tries
from tests.unit.ask.fit.questions import recorded, wishes


def judged(words: str, last: str, framework: str = "") -> Rejection | None:
    """Return the rejection of the first candidates of some wishes, the axis `last` chosen last."""
    asked = wishes(words, framework)
    named = [*asked.by_component]
    chosen = {name: candidates[0] for name, candidates in axes(recorded(), asked).items() if name in named}
    return Rules(recorded(), asked).rejection(chosen, last)


@pytest.mark.parametrize(
    ("words", "last", "text", "involved"),
    [
        (
            "te=2.18 flash-attn=2.8.3.post1",
            "flash-attn",
            "flash-attn outside its window",
            {"transformer-engine", "flash-attn"},
        ),
        (
            "te=2.9 flash-attn=2.8.3 gpu=B200",
            "flash-attn",
            "4 GiB for each layer",
            {"transformer-engine", "flash-attn", "sm"},
        ),
        ("te=2.20.2 torch=2.9", "torch", "requires cuDNN 9.12.0", {"transformer-engine", "torch"}),
        ("te=2.18 torch=2.6.0", "torch", "requires cuDNN", {"transformer-engine", "torch"}),
        (
            "te=2.18 torch=2.5.0",
            "torch",
            "imports torch.distributed.fsdp._fully_shard",
            {"transformer-engine", "torch"},
        ),
        ("te=2.8 torch=2.11", "torch", "no library for CUDA 13", {"transformer-engine", "torch"}),
        ("torch=2.11 driver=550", "torch", "wheels have no compat package", {"torch", "driver"}),
        ("torch=2.5 mcore=0.16", "torch", "declares torch>=2.6.0", {"megatron-core", "torch"}),
        ("mcore=0.19.2 python=3.10", "python", "no file for Python 3.10", {"megatron-core", "python"}),
        ("torch=2.6 gpu=B200", "torch", "no kernels for a Blackwell GPU", {"torch", "sm"}),
        ("te=2.13 torch=2.11", "torch", "libtransformer_engine.so can't be loaded", {"transformer-engine", "torch"}),
        ("te=1.9 torch=2.10", "torch", "imports torch.onnx._type_utils", {"transformer-engine", "torch"}),
    ],
)
def test_rejection_names_what_decides(words: str, last: str, text: str, involved: set[str]) -> None:
    rejection = judged(words, last)
    assert rejection
    assert text in rejection.text
    assert rejection.axes == involved


@pytest.mark.parametrize("words", ["te=2.18 flash-attn=2.8.3", "torch=2.9.1 driver=550", "te=2.12 torch=2.11"])
def test_set_that_fits_is_not_rejected(words: str) -> None:
    assert judged(words, words.partition("=")[0].replace("te", "transformer-engine")) is None


def test_range_of_a_framework_counts() -> None:
    rejection = judged("torch=2.10", "torch", "verl[megatron]==0.9.1")
    assert rejection
    assert rejection.axes == {"framework", "torch"}


def test_source_counts_for_a_python_that_is_wished() -> None:
    asked = wishes("mcore=0.19.2 torch")
    chosen = {
        name: Candidate(name, version, {name: version})
        for name, version in (("megatron-core", "0.19.2"), ("python", "3.14"))
    }
    assert Rules(recorded(), asked).rejection(chosen, "python")
    assert Rules(recorded(), wishes("mcore=0.19.2 python=3.14")).rejection(chosen, "python") is None


# Rules about files, on which check is silent, each with the reason.
OF_FILES = {
    "has no file for Python": "the release may be built from its source, or be another build of it",
    "has no library for CUDA": "Transformer Engine may be compiled where it runs",
    "needs CUDA": "a torch for the CPU may read what a case of level cpu reads",
    " declares ": "pip installs against a declared range with --no-deps, and much of that runs",
}


@given(st.data())
@tries(60)
def test_fit_refuses_what_check_reports_as_certain(data: st.DataObject) -> None:
    """On full stacks of recorded releases, every version pinned."""
    every = axes(recorded(), wishes("flash-attn mamba-ssm"), upgrades=True)
    chosen = {axis: data.draw(st.sampled_from(candidates)) for axis, candidates in every.items()}
    machine = data.draw(st.sampled_from(["", "driver=535", "driver=550", "driver=580", "driver=545"]))
    machine += data.draw(st.sampled_from(["", " gpu=A100", " gpu=H100", " gpu=B200", " gpu=RTX5090"]))
    pinned = [f"{name}={version}" for one in chosen.values() for name, version in one.fixes.items() if version]
    asked = wishes(f"{' '.join(pinned)} {machine}")
    rules, stack = Rules(recorded(), asked), stack_of(asked, chosen)
    found = [one for axis in chosen for one in rules.rejections(chosen, axis) if one.certain]
    checked = check(recorded().catalog, UserStack(stack), Question(), {})
    certain = {str(one.failure.id) for one in checked.failures if one.certain}
    assert {one.failure for one in found if one.failure} == certain
    calls = [one for one in found if one.text.startswith("calls of ")]
    assert bool(calls) == any(one.certain for one in checked.calls)
    clashes = {one.text for one in checked.clashes}
    others = {one.text for one in found if not one.failure and one not in calls}
    assert clashes <= others
    of_files = {text for text in others - clashes if any(part in text for part in OF_FILES)}
    assert of_files == others - clashes
    search = ReleaseSearch(axes(recorded(), asked, upgrades=True), partial(rules.rejection, certain=True))
    assert (search.best() is None) == (checked.breaks or bool(of_files))


def test_stack_has_no_image_and_no_toolkit() -> None:
    stack = stack_of(wishes("te=none driver=550"), {})
    assert {name: str(stack[name]) for name in ("base", "toolkit", "transformer-engine", "driver")} == {
        "base": "none",
        "toolkit": "none",
        "transformer-engine": "none",
        "driver": "550",
    }
