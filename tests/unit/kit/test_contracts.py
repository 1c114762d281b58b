"""What a preflight asks of the recorded APIs."""

from __future__ import annotations

import pytest

from matrix.ground.errors import MatrixError
from matrix.kit import contracts

DEFINED = "transformer_engine.pytorch.module.base:initialize_ub"


def test_call_has_the_error_with_which_it_ends() -> None:
    before, after = (contracts.call("0.8.0", te, "initialize_ub") for te in ("1.8.0", "1.9.0"))
    assert before.error is not None
    assert str(before.error) == "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'"
    assert (after.error, "tp_size" in after.keywords) == (None, True)
    assert contracts.call("0.8.0", "1.9.0", "no_such_function").site == ""


@pytest.mark.parametrize(
    ("path", "name", "taken"), [(DEFINED, "tp_size", True), (DEFINED, "nope", False), ("no.module:f", "nope", None)]
)
def test_parameters_are_those_of_the_release(path: str, name: str, taken: bool | None) -> None:
    assert contracts.takes("1.9.0", path, name) is taken


def test_unknown_release_is_an_error() -> None:
    assert contracts.version("1.9.0") == "1.9.0"
    with pytest.raises(MatrixError):
        contracts.version("99.0")
