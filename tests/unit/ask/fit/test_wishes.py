from __future__ import annotations

import pytest

from matrix.ask.fit.wishes import Framework, Order
from matrix.ground.errors import MatrixError
from tests.unit.ask.fit.questions import wishes


@pytest.mark.parametrize(
    ("word", "sm"),
    [
        ("gpu=H100", "9.0"),
        ("gpu=h100", "9.0"),
        ("gpu=NVIDIA-H100-80GB", "9.0"),
        ("gpu=RTX 4090", "8.9"),
        ("gpu=5070Ti", "12.0"),
        ("sm=90", "9.0"),
        ("sm=sm_120", "12.0"),
        ("sm=10.0", "10.0"),
    ],
)
def test_gpu_is_its_compute_capability(word: str, sm: str) -> None:
    assert wishes(word).given == {"sm": sm}


@pytest.mark.parametrize(
    ("word", "inside", "outside"),
    [
        ("torch=2.9.1", "2.9.1", "2.9.0"),
        ("torch=2.9", "2.9.0", "2.10.0"),
        ("torch>=2.8,<2.10", "2.9.1", "2.10.0"),
        ("torch >= 2.8", "2.8.0", "2.7.1"),
        ("flash-attn=2.8.3", "2.8.3", "2.8.3.post1"),
        ("cuda=12", "12.8", "13.0"),
    ],
)
def test_limits_of_a_wish(word: str, inside: str, outside: str) -> None:
    (wish,) = wishes(word).by_component.values()
    assert wish.allows(inside)
    assert not wish.allows(outside)


def test_words_besides_versions() -> None:
    asked = wishes("mcore=oldest te=none flash-attn torch=newest").by_component
    assert asked["megatron-core"].order is Order.OLDEST
    assert asked["transformer-engine"].absent
    assert asked["flash-attn"].allows("2.1.1")
    assert asked["torch"].order is Order.NEWEST


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("torhc=2.9.1", "did you mean torch?"),
        ("te=2.18.1", "did you mean 2.18.0"),
        ("gpu=H1000", "did you mean H100"),
        ("driver=551", "did you mean"),
        ("torch=abc", "torch=2.9.1"),
        ("torch>>2", "torch=2.9.1"),
        ("sm=95", ""),
        ("transformers=5.0", "megatrix check"),
        ("torch=2.9 torch=2.10", ""),
        ("=2", ""),
    ],
)
def test_typo_is_an_error_with_the_nearest(word: str, fix: str) -> None:
    with pytest.raises(MatrixError) as error:
        wishes(word)
    assert fix in (error.value.fix or "")


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("ms-swift[megatron]==4.6.0", Framework("ms-swift", "4.6.0", ("megatron",))),
        ("nemo==2.7.0", Framework("nemo-toolkit", "2.7.0", ("nlp-only",))),
    ],
)
def test_framework_is_a_requirement(text: str, framework: Framework) -> None:
    assert wishes("", text).framework == framework


@pytest.mark.parametrize("text", ["verll", "verl==99", "verl=="])
def test_unknown_framework_is_an_error(text: str) -> None:
    with pytest.raises(MatrixError):
        wishes("", text)


def test_wishes_without_some() -> None:
    fewer = wishes("torch=2.9.1 driver=550 te").without(["torch", "driver"])
    assert [*fewer.by_component] == ["transformer-engine"]
    assert not fewer.given
