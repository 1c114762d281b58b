"""Binding agrees with Python: the same calls fail, with the same messages; the parameter that a name means."""

import inspect
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.read.api.binding import BindingError, bind, fit, misbound, misplaced, parse_signature, words

NAMES = ["a", "b", "c", "d", "e", "f"]
Drawn: TypeAlias = tuple[str, int, list[str]]  # a signature, positional arguments to it, keywords


@st.composite
def functions(draw: st.DrawFn) -> Drawn:
    """Return a random signature and a random call to it."""
    kinds = sorted(draw(st.lists(st.sampled_from(["positional", "either", "keyword"]), max_size=5)), key=
                   ["positional", "either", "keyword"].index)  # fmt: skip
    args, kwargs = draw(st.booleans()), draw(st.booleans())
    items, optional = [], False
    for place, kind in enumerate(kinds):
        if kind != "keyword":
            optional = optional or draw(st.booleans())
        default = optional if kind != "keyword" else draw(st.booleans())
        items.append((kind, NAMES[place] + ("=None" if default else "")))
    text = [item for kind, item in items if kind == "positional"]
    text += ["/"] if text else []
    text += [item for kind, item in items if kind == "either"]
    keyword_only = [item for kind, item in items if kind == "keyword"]
    text += ["*args"] if args else ["*"] if keyword_only else []
    text += keyword_only + (["**kwargs"] if kwargs else [])
    positional = draw(st.integers(0, 6))
    keywords = draw(st.lists(st.sampled_from([*NAMES, "stranger"]), unique=True, max_size=3))
    return f"({','.join(text)})", positional, keywords


class Call(NamedTuple):
    """A call; by default without arguments, and complete."""

    positional: int = 0
    keywords: tuple[str, ...] = ()
    bound: bool = False
    starred: bool = False
    open_keywords: bool = False


@pytest.mark.parametrize(
    ("signature", "call", "expected"),
    [
        # binds
        ("()", Call(), []),
        ("(a,b=1)", Call(1), []),
        ("(a,b=1)", Call(2), []),
        ("(a,b=1)", Call(0, ("a", "b")), []),
        ("(self,a)", Call(1, bound=True), []),
        ("(*args)", Call(9), []),
        ("(**kwargs)", Call(0, ("x", "y")), []),
        ("(a,/,**kwargs)", Call(1, ("a",)), []),
        ("(*,a)", Call(0, ("a",)), []),
        # too many positional arguments
        ("()", Call(1), [("takes 0 positional arguments but 1 was given", "")]),
        ("()", Call(2), [("takes 0 positional arguments but 2 were given", "")]),
        ("(a)", Call(2), [("takes 1 positional argument but 2 were given", "")]),
        ("(self)", Call(1, bound=True), [("takes 1 positional argument but 2 were given", "")]),
        ("(a,b)", Call(3), [("takes 2 positional arguments but 3 were given", "")]),
        ("(a=1)", Call(2), [("takes from 0 to 1 positional arguments but 2 were given", "")]),
        ("(a,b=1)", Call(3), [("takes from 1 to 2 positional arguments but 3 were given", "")]),
        ("(*,k=1)", Call(1, ("k",)),
         [("takes 0 positional arguments but 1 positional argument (and 1 keyword-only argument) were given", "")]),
        ("(a,*,k=1,l=1)", Call(3, ("k", "l")),
         [("takes 1 positional argument but 3 positional arguments (and 2 keyword-only arguments) were given", "")]),
        ("(a,b=1)", Call(3, ("b",)), [
            ("got multiple values for argument 'b'", "b"),
            ("takes from 1 to 2 positional arguments but 3 were given", ""),
        ]),
        # keywords
        ("(a)", Call(1, ("a",)), [("got multiple values for argument 'a'", "a")]),
        ("(self,a)", Call(0, ("self", "a"), bound=True), [("got multiple values for argument 'self'", "self")]),
        ("(a,**kwargs)", Call(1, ("a",)), [("got multiple values for argument 'a'", "a")]),
        ("(a)", Call(1, ("b",)), [("got an unexpected keyword argument 'b'", "b")]),
        ("(a,/)", Call(1, ("a",)), [("got an unexpected keyword argument 'a'", "a")]),
        ("(a)", Call(1, ("b", "c")),
         [("got an unexpected keyword argument 'b'", "b"), ("got an unexpected keyword argument 'c'", "c")]),
        # missing arguments
        ("(a)", Call(), [("missing 1 required positional argument: 'a'", "")]),
        ("(a,b)", Call(), [("missing 2 required positional arguments: 'a' and 'b'", "")]),
        ("(a,b,c)", Call(), [("missing 3 required positional arguments: 'a', 'b', and 'c'", "")]),
        ("(a,b,c,d)", Call(), [("missing 4 required positional arguments: 'a', 'b', 'c', and 'd'", "")]),
        ("(a,b)", Call(1), [("missing 1 required positional argument: 'b'", "")]),
        ("(a,b)", Call(0, ("b",)), [("missing 1 required positional argument: 'a'", "")]),
        ("(self,a)", Call(bound=True), [("missing 1 required positional argument: 'a'", "")]),
        ("(a,/,**kwargs)", Call(0, ("a",)), [("missing 1 required positional argument: 'a'", "")]),
        ("(*,k)", Call(), [("missing 1 required keyword-only argument: 'k'", "")]),
        ("(*,k,l)", Call(), [("missing 2 required keyword-only arguments: 'k' and 'l'", "")]),
        ("(a,*,k)", Call(),
         [("missing 1 required positional argument: 'a'", ""), ("missing 1 required keyword-only argument: 'k'", "")]),
        ("(a,*,k)", Call(2, ("l",)), [
            ("got an unexpected keyword argument 'l'", "l"),
            ("takes 1 positional argument but 2 were given", ""),
            ("missing 1 required keyword-only argument: 'k'", ""),
        ]),
        # further arguments may follow
        ("(a,b,*,k)", Call(1, starred=True), [("missing 1 required keyword-only argument: 'k'", "")]),
        ("(a,b,*,k)", Call(1, open_keywords=True), []),
        ("(a)", Call(2, ("b",), starred=True, open_keywords=True), [
            ("got an unexpected keyword argument 'b'", "b"),
            ("takes 1 positional argument but 2 were given", ""),
        ]),
    ],
)  # fmt: skip
def test_call_binds_by_pythons_rules(signature: str, call: Call, expected: list[tuple[str, str]]) -> None:
    positional, keywords, bound, starred, open_keywords = call
    errors = bind(
        parse_signature(signature), positional, keywords, bound=bound, starred=starred, open_keywords=open_keywords
    )
    assert errors == [BindingError(*error) for error in expected]


@given(functions())
def test_binding_fails_with_pythons_message(drawn: Drawn) -> None:
    text, positional, keywords = drawn
    space: dict[str, Callable[..., None]] = {}
    exec(f"def called{text}: pass", space)  # the signature under test, as Python reads it
    signature = parse_signature(text)
    errors = bind(signature, positional, keywords, bound=False, starred=False, open_keywords=False)
    message = ""
    try:
        space["called"](*[0] * positional, **dict.fromkeys(keywords, 0))
    except TypeError as raised:
        message = str(raised)
    assert bool(message) == bool(errors)
    if "positional-only" not in message:  # Python's own message for a keyword to a positional-only parameter
        assert message == "".join(f"called() {error.message}" for error in errors[:1])


@given(functions())
def test_positions_land_as_in_python(drawn: Drawn) -> None:
    text, positional, _ = drawn
    space: dict[str, Callable[..., None]] = {}
    exec(f"def called{text}: pass", space)
    signature = inspect.signature(space["called"])
    try:
        bound = signature.bind_partial(*range(positional)).arguments
    except TypeError:
        return
    expected = {name: place for name, place in bound.items() if name != "args"}
    assert expected == {name: place for place, name in enumerate(parse_signature(text).slots[:positional])}


@pytest.mark.parametrize(
    ("signature", "positional", "keywords", "bound", "expected"),
    [
        ("(num_layers,offload_weights)", ["num_layers", "offload_weights"], [], False, []),
        ("(num_layers,offload_weights)", ["offload_weights", ""], [], False, [("offload_weights", "num_layers")]),
        ("(num_layers,*,offload_weights)", ["offload_weights"], [], False, []),
        ("(num_layers,offload_weights)", ["offload_weights"], ["offload_weights"], False, []),
        ("(num_layers,offload_weights)", ["x", "offload_weights"], [], True, []),
        ("(self,num_layers,offload_weights)", ["offload_weights"], [], True, [("offload_weights", "num_layers")]),
        ("(num_layers)", ["x", "num_layers"], [], False, []),
        ("(config,self)", ["self"], [], False, []),  # the object itself, in GPTModel(self)
    ],
)
def test_misbound_argument_means_another_parameter(
    signature: str, positional: list[str], keywords: list[str], bound: bool, expected: list[tuple[str, str]]
) -> None:
    misplacements = misbound(parse_signature(signature), positional, keywords, bound=bound)

    assert [(misplacement.message, misplacement.parameter) for misplacement in misplacements] == [
        (f"positional argument '{name}' lands on '{slot}', and means '{name}'", name) for name, slot in expected
    ]
    assert all(positional[misplacement.position] == misplacement.parameter for misplacement in misplacements)


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
        ("num_layers_offload_weights", "num_layers", OFFLOAD, None),  # contains both names
    ],
)
def test_another_parameter_is_meant_only_if_certain(
    argument: str, landed: str, parameters: list[str], expected: str | None
) -> None:
    assert expected == misplaced(argument, landed, tuple(parameters))


def test_longest_name_is_meant() -> None:
    assert misplaced("offload_activation_weights", "x", ("offload_weights", "offload_activation_weights", "x")) == (
        "offload_activation_weights"
    )


@pytest.mark.parametrize(
    ("word", "stem"),
    [("padding", "padd"), ("padded", "padd"), ("layers", "layer"), ("bias", "bia"), ("ring", "ring"), ("bed", "bed"),
     ("gas", "gas"), ("using", "using"), ("fusing", "fus"), ("aids", "aid"), ("", "")],
)  # fmt: skip
def test_ending_of_a_long_word_is_left_out(word: str, stem: str) -> None:
    assert words(word) == ({stem} if stem else set())


def test_fit_is_the_share_of_matching_words() -> None:
    assert (fit("weights", "offload_weights"), fit("x", "y"), fit("x", "_")) == (0.5, 0.0, 0.0)


def test_text_is_read_as_parameters() -> None:
    signature = parse_signature("(a,/,b=1,*args,c,d=None,**kw)")
    assert (signature.slots, signature.unnamed, signature.keywords) == (("a", "b"), 1, ("c", "d"))
    assert (sorted(signature.required), signature.args, signature.kwargs) == (["a", "c"], "args", "kw")
    assert signature.accepted == {"b", "c", "d"}
    assert [signature.takes(name) for name in ("a", "d", "args", "kw", "e")] == [True, True, True, True, False]


def test_other_text_is_no_signature() -> None:
    with pytest.raises(ValueError, match="not a signature"):
        parse_signature("enabled, num_layers")
