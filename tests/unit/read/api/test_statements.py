"""Read a module, class or function: where its definitions are reached, and what its functions return."""

import pytest

from matrix.read.api.comparison import find
from tests.unit.read.api.sources import broken, core, mcore, project

OFFERED = "def get(a): ..."
FAILS = [("definite", "get() takes 1 positional argument but 2 were given")]
HEAD = "import transformer_engine as te\nfrom megatron.core.utils import is_te_min_version\n"


def at(source: str) -> list[bool]:
    """Return whether the break is found below and at TE 2.0."""
    return [broken(HEAD + source, OFFERED, version) == FAILS for version in ("1.9", "2.0")]


@pytest.mark.parametrize(
    ("fork", "expected"),
    [
        ("if is_te_min_version('2.0'):", [False, True]),
        ("if not is_te_min_version('2.0'):\n        pass\n    else:", [False, True]),
        ("if not is_te_min_version('2.0'):", [True, False]),
        ("try:\n        import torch\n    except ImportError:\n        pass\n    else:", [True, True]),
        ("with torch.no_grad():", [True, True]),
        ("for _ in range(3):", [True, True]),
    ],
)
def test_method_in_a_class_fork_is_read(fork: str, expected: list[bool]) -> None:
    """Its call is recorded under the guard of the fork."""
    method = "        def forward(self):\n            te.pytorch.get(1, 2)\n"
    assert at(f"class MLP:\n    {fork}\n{method}") == expected


def test_method_in_a_class_handler_is_read() -> None:
    source = """
class MLP:
    try:
        from transformer_engine.pytorch import gone
        def forward(self):
            te.pytorch.get(1)
    except ImportError:
        def forward(self):
            te.pytorch.get(1, 2)
"""
    assert ("definite", FAILS[0][1]) in broken(HEAD + source, OFFERED)
    assert broken(HEAD + source, f"{OFFERED}\ngone = 1") == []


def test_forked_method_is_that_of_its_te() -> None:
    source = """
class MLP:
    if is_te_min_version("2.0"):
        def wide(self):
            return is_te_min_version("1.0")
    else:
        def wide(self):
            return not is_te_min_version("1.0")
    def forward(self):
        if self.wide():
            te.pytorch.get(1, 2)
"""
    assert at(source) == [False, True]


def test_both_functions_of_a_property_are_read() -> None:
    """The setter replaces the getter in the class; both run."""
    source = """
class MLP:
    @property
    def scale(self):
        te.pytorch.get(1, 2)
    @scale.setter
    def scale(self, value):
        te.pytorch.get(1)
"""
    sites = [use.site.line - HEAD.count("\n") for use in mcore(HEAD + source).uses if use.kind == "call"]
    assert sites == [5, 8]
    assert at(source) == [True, True]


CORE = core({"a.py": "def f(x): ...\n"})


def test_alternative_import_is_bound_where_it_ran() -> None:
    """accelerate: without either branch Python raises UnboundLocalError, and no configuration gets there."""
    source = """
def run(self):
    if self.version == 1:
        from megatron.core.a import f as g
    elif self.version == 2:
        from megatron.core.a import gone as g
    g(1)
"""
    found = find(project(source), CORE)
    assert [(finding.call_site.line, finding.guard) for finding in found] == [
        (6, "not self.version == 1 and self.version == 2")
    ]


def test_star_import_of_own_module_binds_names() -> None:
    """nvidia-modelopt re-exports import_plugin, which swallows exceptions; two modules may import one another."""
    files = {
        "pkg/__init__.py": "",
        "pkg/utils/__init__.py": "from .plugins import *\n",
        "pkg/utils/plugins.py": """
            from contextlib import contextmanager
            from pkg.utils import *
            @contextmanager
            def import_plugin(name):
                try:
                    yield
                except ImportError:
                    pass
        """,
        "a.py": "from pkg.utils import import_plugin\nwith import_plugin('m'):\n    from megatron.core.a import gone\n",
    }
    assert [finding.kind.value for finding in find(project(files), CORE)] == ["silently-off"]
