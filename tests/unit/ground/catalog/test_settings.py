"""The table of the names that frameworks give the arguments of Megatron-LM."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ground.catalog.reach import JobArguments
from matrix.ground.catalog.settings import Setting, SettingsTable, dashed, recognised, settings_table, translated
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import real


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"fp8": "hybrid"}, {"fp8-format": "hybrid"}),
        ({"fp8": True, "fp8-hybrid": True, "fp8-e4m3": False}, {"fp8-format": "hybrid"}),
        ({"fp8": True, "fp8-e4m3": True}, {"fp8-format": "e4m3"}),
        ({"fp8": False, "fp8-hybrid": True}, {"fp8-format": False}),
        ({"fp8-hybrid": True}, {}),
        ({"encoder-seq-length": "4096"}, {"seq-length": "4096"}),
        ({"skip-getting-attention-mask-from-dataset": True}, {"create-attention-mask-in-dataloader": False}),
        ({"activations-checkpoint-granularity": "full"}, {"recompute-granularity": "full"}),
        ({"context-parallel-size": "2"}, {"context-parallel-size": "2"}),
    ],
)
def test_settings_become_arguments(given: dict[str, str | bool], arguments: dict[str, str | bool]) -> None:
    assert translated(given) == arguments


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--tp_comm_overlap false", {"tp-comm-overlap": False}),
        ("--sequence_parallel true --lr 1", {"sequence-parallel": True, "lr": "1"}),
        ("+model.fp8=True model.fp8_hybrid=True", {"fp8-format": "hybrid"}),
        (
            "a.rollout.tensor_model_parallel_size=1 a.actor.tensor_model_parallel_size=4",
            {"tensor-model-parallel-size": "4"},
        ),
    ],
)
def test_command_lines_are_translated(words: str, given: dict[str, str | bool]) -> None:
    assert JobArguments.parse(words.split()).given == given


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["tensor_model_parallel_size", "micro-batch-size", "fp8"], True),
        (["tensor_model_parallel_size", "micro_batch_size", "image"], False),
        (["fp8", "fp8_hybrid", "fp8"], False),
        ([], False),
    ],
)
def test_three_names_make_settings(names: list[str], expected: bool) -> None:
    assert recognised(names) is expected


ROW = Setting(("a_b",), "c-d", "somewhere")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((replace(ROW, source=""),), "without a source"),
        ((replace(ROW, names=()),), "without a name"),
        ((replace(ROW, option="c_d"),), "not the name of an argument"),
        ((ROW, replace(ROW, names=("x",), needs="a_b")), "belong together"),
        ((ROW, replace(ROW, names=("x",), needs="y", value="v")), "names no setting"),
        ((ROW, replace(ROW, option="e")), "two meanings"),
    ],
)
def test_damaged_table_is_refused(rows: tuple[Setting, ...], message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        SettingsTable(rows, settings_table().recognised)


def test_no_row_hides_an_option_of_failures() -> None:
    """A name that is an argument of Megatron itself may not be translated into another."""
    names = {dashed(name) for row in settings_table().setting for name in row.names}
    conditions = {one.option for failure in real().failures for way in failure.reached_by for one in way.on_arguments}
    assert not names & conditions
