"""Uses and their forms."""

from __future__ import annotations

import pytest

from matrix.read.api.guard import Config, Guard
from matrix.read.api.uses import Arguments, Calls, Site, Use

CALL = Use("call", "te:get", Site("a.py", 1, "f"), True, arguments=Arguments(("x",), (("k", True),)))


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (CALL._replace(site=Site("b.py", 2, "g")), True),
        (CALL._replace(guard=Config("c"), here=Config("c")), True),
        (CALL._replace(swallowed=("TypeError",), effect="x = None", fallback=True, refused=("ImportError",)), True),
        (CALL._replace(kind="attribute"), False),
        (CALL._replace(path="te:other"), False),
        (CALL._replace(arguments=None), False),
        (CALL._replace(arguments=Arguments(("y",), (("k", True),))), False),
        (CALL._replace(arguments=Arguments(("x",), (("k", True),), starred=True)), False),
        (CALL._replace(bound="Linear"), False),
        (CALL._replace(signature="(a)"), False),
        (CALL._replace(unpacks=2), False),
    ],
)
def test_form_is_what_decides_whether_a_use_fits(other: Use, is_same: bool) -> None:
    places = list(Calls("1", (CALL, other)).forms.values())

    assert places == ([[0, 1]] if is_same else [[0], [1]])


@pytest.mark.parametrize("guards", [(Config("a"), Config("b")), (Config("a"), False)])
def test_keywords_under_different_guards_have_one_form(guards: tuple[Guard, Guard]) -> None:
    uses = [CALL._replace(arguments=Arguments(keywords=(("k", guard),))) for guard in guards]
    calls = Calls("1", (*uses, CALL._replace(arguments=Arguments(keywords=(("k", True),)))))

    assert [[name for name, _ in form.arguments.keywords] for form in calls.forms if form.arguments] == [["k"], ["k"]]
    assert list(calls.forms.values()) == [[0, 1], [2]]


@pytest.mark.parametrize(("site", "text"), [(Site("a.py", 3, "C.f"), "a.py:3 C.f"), (Site("a.py", 3), "a.py:3")])
def test_site_is_path_line_and_function(site: Site, text: str) -> None:
    assert str(site) == text
