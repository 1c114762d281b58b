"""The parameter that an argument's name means."""

import pytest

from matrix.contract.argument_names import fit, misplaced, words

OFFLOAD = ["enabled", "num_layers", "model_layers", "offload_activations", "offload_weights"]
UNPERMUTE = ["inp", "row_id_map", "merging_probs", "restore_shape", "probs"]


def test_words_are_compared_without_their_endings() -> None:
    assert words("cpu_offloading_activations") == {"cpu", "offload", "activation"}


@pytest.mark.parametrize(
    ("argument", "landed", "parameters", "expected"),
    [
        ("cpu_offloading_activations", "model_layers", OFFLOAD, "offload_activations"),
        ("cpu_offloading_weights", "offload_activations", OFFLOAD, "offload_weights"),
        ("activation_offloading", "offload_activations", OFFLOAD, None),
        ("cpu_offloading_num_layers", "num_layers", OFFLOAD, None),
        ("cpu_offloading", "enabled", OFFLOAD, None),  # contains no parameter's whole name
        ("probs", "merging_probs", UNPERMUTE, None),  # a more specific name of the same thing
        ("x", "inp", UNPERMUTE, None),
        ("", "inp", UNPERMUTE, None),
        ("layernorm_bias", "ln_bias", ["inp", "ln_bias", "bias"], None),  # one word may match by chance
        ("bias", "inp", ["inp", "ln_weight", "bias"], "bias"),
    ],
)
def test_another_parameter_is_meant_only_if_certain(
    argument: str, landed: str, parameters: list[str], expected: str | None
) -> None:
    assert expected == misplaced(argument, landed, tuple(parameters))


def test_fit_is_the_share_of_matching_words() -> None:
    assert (fit("weights", "offload_weights"), fit("x", "y"), fit("x", "_")) == (0.5, 0.0, 0.0)
