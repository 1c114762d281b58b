from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ask.check.answer import CheckAnswer
from matrix.ask.fit.candidates import axes
from matrix.ask.fit.fit_answer import FitVerdict, fit
from matrix.ground.errors import ExitStatus
from tests.founding import LIBRARIES, WINDOW
from tests.profiles import tries
from tests.unit.ask.fit.questions import OLD_CUBLAS, QUESTIONS, Question, answered, recorded, wishes


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.thread)
def test_questions_of_threads_have_answers_that_pass_check(question: Question) -> None:
    answer = answered(question.words, question.framework, question.machine)
    assert (answer.verdict is not FitVerdict.CONFLICT) == question.fits
    sets = [answer.best] if answer.best else [one.fitting for one in answer.alternatives]
    assert sets, "a conflict names what fits without a wish"
    for fitting in sets:
        assert fitting
        assert fitting.result.answer is CheckAnswer.NONE_KNOWN
    if answer.best:
        assert question.expected.items() <= answer.best.versions.items()


def test_conflict_names_each_wish_that_can_be_dropped() -> None:
    answer = answered(OLD_CUBLAS, machine="aarch64")
    assert {one.dropped for one in answer.alternatives} == {("te=2.17.1",), ("nvidia-cublas=13.1.0.3",)}
    assert any("cublasLtGroupedMatrixLayoutInit_internal" in reason.text for reason in answer.reasons)
    assert answer.verdict.status is ExitStatus.BAD


def test_newer_library_lifts_a_conflict() -> None:
    best = answered("torch=2.12.0 cuda=13.0 te=2.16.0").best
    assert best
    (newer,) = (each for each in best.installed if each.way == "upgrade")
    assert (newer.package, newer.version) == ("nvidia-cublas", "13.4.1.3")
    assert "torch declares 13.1.1.3" in newer.needs
    assert "cublasLtGroupedMatrixLayoutInit_internal" in newer.needs
    assert not any("nvidia-cublas" in pin for pin in best.pins)


def test_library_of_torch_is_kept_where_it_fits() -> None:
    best = answered("te=2.13 torch=2.11").best
    assert best
    assert not any(each.way == "upgrade" for each in best.installed)


def test_what_an_option_decides_is_a_caveat() -> None:
    best = answered("te=2.9 flash-attn=2.8.3").best
    assert best
    (caveat,) = best.caveats
    assert WINDOW in caveat
    assert not answered("te flash-attn=2.8.3").best.caveats  # type: ignore[union-attr]


def test_dropped_driver_names_one_that_would_do() -> None:
    answer = answered("torch=2.12 cuda=13 driver=550")
    remarks = {one.dropped: one.remark for one in answer.alternatives}
    assert remarks[("driver=550",)] == "driver 580 or later runs CUDA 13.2"


def test_dropped_release_gives_the_nearest() -> None:
    (alternative,) = answered("te=2.6 driver=570 gpu=H100").alternatives
    assert alternative.fitting.versions["transformer-engine"] == "2.8.0"


def test_set_that_the_index_refuses_is_replaced() -> None:
    first = answered("mcore gpu=H100").best
    assert first
    answer = fit(recorded(), wishes("mcore gpu=H100"), lambda made: "no" if made.versions == first.versions else "")
    assert answer.best
    assert answer.best.versions != first.versions


def test_driver_without_a_source_is_unknown() -> None:
    answer = answered("driver=545 torch=2.4")
    assert answer.verdict is FitVerdict.UNKNOWN
    assert answer.verdict.status is ExitStatus.NOTHING
    assert "545" in answer.unknown[0]


def test_evidence_of_a_release_starts_with_the_strongest() -> None:
    best = answered("mcore=0.16.0 torch=2.8 flash-attn=2.8.3").best
    assert best
    kinds = ["run", "read", "declared", "unknown"]
    for items in best.evidence.values():
        assert [kinds.index(item.kind) for item in items] == sorted(kinds.index(item.kind) for item in items)
    assert any("window" in item.text for item in best.evidence["flash-attn"])


def test_release_without_a_statement_has_unknown_evidence() -> None:
    best = answered("mamba-ssm gpu=H100").best
    assert best
    assert best.evidence["mamba-ssm"][-1].kind == "unknown"


def test_wheels_come_before_builds() -> None:
    best = answered("mcore=0.16.0 torch=2.8 flash-attn=2.8.3 python=3.12").best
    assert best
    ways = {each.package: each.way for each in best.installed}
    assert ways["megatron-core"] == "wheel"
    assert ways["flash-attn"] == "attached wheel"
    assert ways["transformer-engine-torch"] == "build"
    assert [each.way == "wheel" for each in best.installed] == sorted(
        (each.way == "wheel" for each in best.installed), reverse=True
    )


def test_apex_is_no_pin() -> None:
    best = answered("apex torch=2.9.1").best
    assert best
    assert not any("apex" in pin for pin in best.pins)


def test_image_with_the_set_is_named() -> None:
    best = answered("torch=2.10 te=2.12 mcore=0.16 cuda=13 driver=580").best
    image = best and best.image
    assert image
    assert image.alike


WORDS = st.fixed_dictionaries(
    {},
    optional={
        "torch": st.sampled_from(["=2.4", "=2.7", "=2.9.1", "=2.11", ">=2.12", "=oldest"]),
        "mcore": st.sampled_from(["=0.9", "=0.12", "=0.15", "=0.18.2", "=none", "=oldest"]),
        "te": st.sampled_from(["=1.13", "=2.3", "=2.6", ">=2.10", "=2.18", "=none"]),
        "flash-attn": st.sampled_from(["", "=2.6.3", "=2.8.3", ">=2.8.3.post1"]),
        "driver": st.sampled_from(["=535", "=550", "=570", "=580", "=545"]),
        "gpu": st.sampled_from(["=A100", "=H100", "=B200", "=RTX5090"]),
        "python": st.sampled_from(["=3.10", "=3.12", "=3.14"]),
        "cuda": st.sampled_from(["=12", "=13", "=12.6"]),
    },
)


@given(WORDS)
@tries(10)
def test_no_answer_has_a_certain_break(chosen: dict[str, str]) -> None:
    """Also of the sets without some wishes; each wish that counts is kept."""
    words = " ".join(name + value for name, value in chosen.items())
    asked = wishes(words)
    answer = fit(recorded(), asked)
    sets = [answer.best] if answer.best else [one.fitting for one in answer.alternatives]
    for fitting in filter(None, sets):
        assert not fitting.result.breaks, (words, fitting.versions)
    if answer.best:
        for name, wish in asked.by_component.items():
            assert wish.absent or wish.allows(answer.best.versions[name])


def test_newer_releases_are_held_back_by_a_reason() -> None:
    held_back = answered("driver=550 gpu=B200 flash-attn").held_back
    reasons = [(one.newer[0], one.reason.text) for one in held_back if one.axis == "torch"]
    assert [newer for newer, _ in reasons] == ["2.15.0", "2.14.1+cu126"]
    assert "driver 550 is too old" in reasons[0][1]
    assert "no kernels for a Blackwell GPU" in reasons[1][1]


def test_releases_of_one_reason_are_one_group() -> None:
    (engines,) = (one for one in answered("torch=2.12.0 cuda=13.0").held_back if one.axis == "transformer-engine")
    assert (engines.chosen, engines.newer[0], engines.newer[-1]) == ("2.12.0", "2.20.2", "2.13.0")
    assert engines.reason.failure == LIBRARIES


def test_release_that_the_index_refuses_is_held_back() -> None:
    first = answered("").best
    assert first
    answer = fit(recorded(), wishes(""), lambda made: "no" if made.versions == first.versions else "")
    pythons = {one.newer: one.reason.text for one in answer.held_back if one.axis == "python"}
    assert pythons[("3.13",)] == "the index does not resolve a set with it"


def test_wishes_and_the_oldest_hold_nothing_back() -> None:
    held_back = {one.axis for one in answered("mcore=0.16.0 torch=oldest").held_back}
    assert not held_back & {"megatron-core", "torch"}


def test_axes_with_an_order_come_first() -> None:
    assert [*axes(recorded(), wishes("flash-attn torch=oldest"))][:2] == ["torch", "megatron-core"]


@pytest.mark.parametrize(
    ("words", "beside"), [("mcore=0.12.0 torch=2.4.0", ("numpy<2",)), ("mcore=0.16.0 torch=2.8", ())]
)
def test_undeclared_limits_of_other_packages_are_stated(words: str, beside: tuple[str, ...]) -> None:
    best = answered(words).best
    assert best
    assert best.beside == beside
