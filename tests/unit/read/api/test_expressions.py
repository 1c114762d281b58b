"""Names and collected keywords of a consuming package, read from source text."""

from __future__ import annotations

import ast
import re

import pytest

from matrix.read.api.definition import LONGEST_TEXT, shown
from matrix.read.api.expressions import compared, written
from matrix.read.api.guard import Config, Guard, Takes, TeVersion, Unclear, negate
from matrix.read.api.value import (
    OF_TE,
    UNKNOWN,
    Anything,
    FixedVersion,
    Literal,
    Outside,
    ParametersOf,
    RunningVersion,
    Value,
    single,
)
from tests.unit.read.api.sources import broken, mcore, te
from tests.unit.read.api.test_evaluation import FAILS, FOUR


def test_have_te_flag_follows_its_imports() -> None:
    source = """
        try:
            import transformer_engine as te
            from transformer_engine.pytorch import gone
            HAVE_TE = True
        except ImportError:
            HAVE_TE = False
        def wrapper():
            if HAVE_TE:
                te.pytorch.get(1, 2, 3, 4, 5)
    """
    effect = "cannot import name 'gone' from 'transformer_engine.pytorch'; swallowed: HAVE_TE = False"
    assert [("silently-off", effect)] == broken(source, FOUR)
    assert broken(source, FOUR + "\ngone = 1") == FAILS


def test_have_te_flag_follows_another_module() -> None:
    calls = mcore(
        {
            "extensions.py": "from transformer_engine.pytorch import gone, get as te_get\n",
            "block.py": """
                try:
                    from megatron.core.extensions import te_get
                    HAVE_TE = True
                except ImportError:
                    HAVE_TE = False
                def build():
                    if HAVE_TE: te_get(1, 2, 3, 4, 5)
            """,
        }
    )
    missing = [("definite", "cannot import name 'gone' from 'transformer_engine.pytorch'")]
    assert missing == broken(calls, te(FOUR))
    assert broken(calls, te(FOUR + "\ngone = 1")) == FAILS


def test_none_after_a_failed_import_guards_calls() -> None:
    source = """
        try:
            from transformer_engine.pytorch import gone as get
        except ImportError:
            get = None
        def wrapper():
            if get is not None:
                get(1, 2)
    """
    assert [kind for kind, _ in broken(source, FOUR)] == ["silently-off"]


def test_collected_keywords_keep_their_guards() -> None:
    source = """
        import transformer_engine as te
        from megatron.core.utils import is_te_min_version
        def extra(config):
            kw = {"weights": config.w}
            if is_te_min_version("1.9.0"):
                kw["device"] = "cpu"
            return kw
        def wrapper(config):
            kw = extra(config)
            if config.wide:
                if not is_te_min_version("1.9.0"):
                    kw.update(width=1)
            kw.pop("weights")
            te.pytorch.get(1, **kw)
    """
    calls = mcore(source)
    assert broken(calls, te(FOUR), "1.8.0") == [("definite", "get() got an unexpected keyword argument 'width'")]
    assert broken(calls, te(FOUR), "1.9.0") == [("definite", "get() got an unexpected keyword argument 'device'")]


TAKES = Takes("te:f", "recipe")
ONE, TWO, PAIR = Literal(1), Literal(2), Literal((1, 3))
RUNNING, FIXED = RunningVersion(parsed=True), FixedVersion("2.0")


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(
    ("left", "op", "right", "expected"),
    [
        (Literal("recipe"), ast.In, ParametersOf("te:f"), TAKES),
        (Literal("recipe"), ast.NotIn, ParametersOf("te:f"), negate(TAKES)),
        (Anything("x"), ast.In, ParametersOf("te:f"), Unclear("x OP y")),
        (ONE, ast.In, PAIR, True),
        (TWO, ast.In, PAIR, False),
        (ONE, ast.NotIn, PAIR, False),
        (TWO, ast.NotIn, PAIR, True),
        (RUNNING, ast.GtE, FIXED, TeVersion(">=", "2.0")),
        (RUNNING, ast.Gt, FIXED, TeVersion(">", "2.0")),
        (RUNNING, ast.LtE, FIXED, TeVersion("<=", "2.0")),
        (RUNNING, ast.NotEq, FIXED, TeVersion("!=", "2.0")),
        (FIXED, ast.Lt, RUNNING, TeVersion(">", "2.0")),
        (ONE, ast.Eq, ONE, True),
        (ONE, ast.NotEq, ONE, False),
        (ONE, ast.Eq, TWO, False),
        (ONE, ast.NotEq, TWO, True),
        (OF_TE, ast.Eq, ONE, Unclear("x OP y")),
        (ONE, ast.In, OF_TE, Unclear("x OP y")),
        (Anything("x"), ast.Gt, ONE, Config("x OP y")),
        (ONE, ast.Gt, TWO, Config("x OP y")),
        (Anything("x"), ast.Is, Outside("y"), Config("x OP y")),
    ],
)
def test_comparison_of_values_is_a_guard(left: Value, op: type[ast.cmpop], right: Value, expected: Guard) -> None:
    assert compared(op(), left, right, "x OP y") == expected


@pytest.mark.parametrize(
    ("op", "text", "positive"),
    [
        (ast.NotEq, "x != 1", "x == 1"),
        (ast.NotEq, "x != f(y != 1)", "x == f(y != 1)"),
        (ast.NotIn, "x not in y", "x in y"),
        (ast.IsNot, "x is not y", "x is y"),
    ],
)
def test_negative_comparison_excludes_the_positive(op: type[ast.cmpop], text: str, positive: str) -> None:
    assert compared(op(), Anything("x"), Anything("y"), text) == negate(Config(positive))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("self.config.fp8", "self.config.fp8"),
        ("'a'", "'a'"),
        ("f(x, 1, mode='a')", "f(x, 1, mode='a')"),
        ("not x", "not x"),
        ("a.b >= 1", "a.b >= 1"),
        ("a in b", "a in b"),
        ("a is b", "a is b"),
        ("x[0]", "x[0]"),
        ("(a, b)", "(a, b)"),
        ("{a, b}", "(a, b)"),
    ],
)
def test_condition_is_shown_in_short_form(source: str, expected: str) -> None:
    assert shown(expression(source)) == expected


def test_omission_has_a_digest() -> None:
    """Equal texts are equal conditions, also where a part is left out."""
    assert shown(expression("x + 1")) != shown(expression("x + 2"))
    assert re.fullmatch(r"\.\.\.[0-9a-f]{6}", shown(expression("x + 1")))
    short, long = (shown(expression(f"x == '{'a' * count}'")) for count in (LONGEST_TEXT - 7, LONGEST_TEXT - 6))
    assert len(short) == len(long) == LONGEST_TEXT
    assert "..." not in short
    assert long[-9:-6] == "..."
    assert long != shown(expression(f"x == '{'a' * LONGEST_TEXT}'"))


def test_operand_has_its_name_at_its_origin() -> None:
    assert written(single(Anything("config.fp8")), expression("recipe")) == "config.fp8"
    assert written(UNKNOWN, expression("recipe")) == "recipe"
    assert written(single(Literal(1)), expression("recipe")) == "recipe"
