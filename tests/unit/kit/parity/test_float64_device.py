"""The names of torch that stand in for CUDA's."""

from __future__ import annotations

from typing import Any

from matrix.kit.parity import campaign
from matrix.kit.parity.campaign import Stream


def test_float64_has_the_name_of_cudas_float32() -> None:
    kind = campaign._cuda_names(lambda tensor, *_: tensor)
    assert kind("torch.DoubleTensor") == "torch.cuda.FloatTensor"
    assert kind("torch.LongTensor") == "torch.LongTensor"
    assert kind("torch.BFloat16Tensor") == "torch.cuda.BFloat16Tensor"
    assert kind("torch.FloatTensor") == "torch.cuda.BFloat16Tensor"  # of mixed precision


def test_sizes_of_an_exchange_become_lists() -> None:
    class Sizes(list[int]):
        def tolist(self) -> list[int]:
            return [*self]

    def original(output: Any, given: Any, **sizes: Any) -> Any:
        return sizes

    exchange = campaign._with_lists(original)
    expected = {"output_split_sizes": [1, 2], "input_split_sizes": [3, 0], "group": "g"}
    for arguments, keywords in (
        ((Sizes([1, 2]), [3, 0]), {}),
        ((), {"output_split_sizes": Sizes([1, 2]), "input_split_sizes": [3, 0]}),
    ):
        result = exchange("out", "in", *arguments, group="g", **keywords)
        assert result == expected
        assert all(type(value) in (list, str) for value in result.values())


def test_streams_do_nothing() -> None:
    stream = Stream(device="cuda", priority=0)
    stream.wait_stream(Stream())
    assert isinstance(stream.record_event(), Stream)
    assert stream.query()
