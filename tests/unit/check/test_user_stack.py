"""The stack of a text, an image and a list of statements."""

from __future__ import annotations

import pytest

from matrix.catalog.place import Place
from matrix.catalog.stack import ABSENT, BASE, DRIVER, MCORE, PYTHON, TE, TORCH, UNKNOWN
from matrix.check.files.declared import Statement, Unread, UnreadKind
from matrix.check.user_stack import COMMAND_LINE, UserStack, build, image_of, parse_text, possible, unrecorded
from matrix.errors import MatrixError
from tests.unit.catalogs import real


def stack(text: str) -> UserStack:
    return build(real(), parse_text(real(), text))


def test_an_image_has_its_torch_and_te() -> None:
    found = stack("base=ngc-24.07 mcore=0.9.0rc0+094d66b")
    assert {name: found.stack[name] for name in (BASE, TORCH, TE, MCORE, DRIVER)} == {
        BASE: "ngc-24.07",
        TORCH: "2.4.0a0+3bcc3cddb5",
        TE: "1.8.0+37280ec",
        MCORE: "0.9.0rc0+094d66b",
        DRIVER: UNKNOWN,
    }
    assert found.place(TE) == Place("in ngc-24.07")


def test_unnamed_component_is_unknown() -> None:
    """The torch of a stack without a container of NVIDIA is no container's."""
    found = stack("torch=2.4.1").stack
    assert {found[name] for name in (MCORE, TE, DRIVER, PYTHON, "numpy")} == {UNKNOWN}
    assert found[BASE] is ABSENT


def test_none_is_absent() -> None:
    assert stack("mcore=0.9.0 te=none").stack[TE] is ABSENT


def test_any_component_is_named() -> None:
    """By any of its names."""
    named = stack("flash-attn=2.8.3 cudnn=9.10 nvidia-nccl-cu12=2.27.3").stack
    assert named.versions == {"flash-attn": "2.8.3", "cudnn": "9.10", "nccl": "2.27.3"}


@pytest.mark.parametrize("torch", ["2.4.0a0+3bcc3cddb5", "2.4.0a0+3bcc3cddb5.nv24.07"])
def test_torch_of_a_container_stands_for_it(torch: str) -> None:
    """NGC's own version string and the catalog's abbreviation of it."""
    assert stack(f"torch={torch} mcore=0.8.0").stack[BASE] == "ngc-24.07"


def test_unknown_contents_of_an_image_are_unread() -> None:
    text = "the catalog does not know the torch and the Transformer Engine of ngc-26.08"
    assert stack("base=ngc-26.08").unread == (Unread(UnreadKind.IMAGE, text, COMMAND_LINE),)


def test_torch_over_an_image_replaces_its_rules() -> None:
    found = stack("base=ngc-24.07 torch=2.5.1")
    assert (found.stack[BASE], found.stack[TORCH], found.stack[TE]) == (ABSENT, "2.5.1", "1.8.0+37280ec")
    assert found.notes == ("torch 2.5.1 (command line) replaces that of ngc-24.07",)


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("mcore==0.8.0", "mcore=0.8.0"),
        ("mcore=core_v0.8.0", "mcore=0.8.0"),
        ("megatron_core=0.8.0", "mcore=0.8.0"),
        ("transformer-engine=1.9.0", "te=1.9.0"),
        ("nvcr.io/nvidia/pytorch:24.07-py3", "base=ngc-24.07"),
        ("base=nvcr.io/nvidia/pytorch:24.07-py3", "base=ngc-24.07"),
    ],
)
def test_usual_ways_of_writing_are_read(written: str, same: str) -> None:
    """A line of a requirements file, a tag of Megatron-LM, the name of a distribution or an image."""
    assert stack(written) == stack(same)


@pytest.mark.parametrize(
    ("reference", "id"),
    [
        ("nvcr.io#nvidia/pytorch:24.07-py3", "ngc-24.07"),
        ("docker://nvcr.io/nvidia/pytorch:24.07-py3", "ngc-24.07"),
        ("/lustre/images/nvidia+pytorch+24.07-py3.sqsh", "ngc-24.07"),
        ("nvcr.io/nvidia/nemo:24.09", "nemo-24.09"),
        ("nvcr.io/nvidia/pytorch:99.01-py3", None),
        ("ubuntu:24.04", None),
        ("my-pytorch-24.07", "ngc-24.07"),
        ("$BASE", None),
    ],
)
def test_image_reference_names_a_container(reference: str, id: str | None) -> None:
    found = image_of(real(), reference)
    assert (found and str(found.id)) == id


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mcre=0.8.0", "did you mean mcore"),
        ("flash-atn=2.8.3", "did you mean flash-attn"),
        ("mcore", "not a stack"),
        ("mcore=", "not a stack"),
        ("mcore=new", "not a version"),
        ("mcore=0.8.0 mcore=0.9.0", "named twice"),
        ("base=ngc-2407", "did you mean ngc-24.07"),
        ("driver=abc", "such as driver=535"),
        ("", "no stack"),
    ],
)
def test_an_invalid_stack_is_an_error(text: str, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        stack(text)


def test_later_statement_replaces_an_earlier_one() -> None:
    found = build(real(), [Statement(TORCH, "2.4.1", Place("a", 1)), Statement(TORCH, "2.5.1", Place("b", 2))])
    assert (found.stack[TORCH], found.place(TORCH)) == ("2.5.1", Place("b", 2))
    assert found.notes == ("torch: 2.4.1 (a:1), then 2.5.1 (b:2); the later one counts",)


def test_range_limits_an_open_axis() -> None:
    found = build(real(), [Statement(TORCH, UNKNOWN, Place("a", 1), ">=2.4,<2.5")])
    assert (found.limits, possible(real(), found, "torch")) == ({"torch": ">=2.4,<2.5"}, ["2.4.0", "2.4.1"])


def test_exact_version_survives_a_range() -> None:
    found = build(real(), [Statement(TORCH, "2.4.1", Place("a", 1)), Statement(TORCH, UNKNOWN, Place("b", 2), ">=2")])
    assert (found.stack[TORCH], found.notes) == ("2.4.1", ())


def test_lock_closes_the_axes() -> None:
    found = build(real(), [Statement(TORCH, "2.9.1", Place("uv.lock"))], closed=True)
    assert (found.stack[TE], found.place(TE), found.stack["numpy"]) == (ABSENT, Place("absent"), ABSENT)
    assert {found.stack[name] for name in (DRIVER, "cudnn")} == {UNKNOWN}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mcore=0.8.7", "megatron-core 0.8.7 is no release that this catalog knows: 0.8.0, then 0.9.0"),
        ("te=0.1", "Transformer Engine 0.1 is no release that this catalog knows: 1.0.0 is the first"),
        ("torch=9.9", "torch 9.9 is newer than every release that this catalog knows: "),
    ],
)
def test_version_that_does_not_exist_is_named(text: str, message: str) -> None:
    (why,) = unrecorded(real(), stack(text).stack).values()
    assert why.startswith(message)


@pytest.mark.parametrize("text", ["torch=2.9.1+cu128", "te=1.9", "mcore=0.9.0rc0", "te=1.8.0+37280ec", "te=2.9.0.dev1"])
def test_builds_and_candidates_exist(text: str) -> None:
    assert unrecorded(real(), stack(text).stack) == {}
