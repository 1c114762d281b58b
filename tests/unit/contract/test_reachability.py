"""Guards from other functions: constructors, callers of private functions, checks of configurations."""

import pytest

from matrix.contract.comparison import find
from tests.unit.contract.sources import broken, core, project

OFFERED = "def get(a): ..."
HEAD = "import transformer_engine as te\nfrom megatron.core.utils import is_te_min_version\nimport inspect\n"
FAILS = [("definite", "get() takes 1 positional argument but 2 were given")]


def at(source: str) -> list[bool]:
    """Return whether the break is found below and at TE 2.0."""
    return [broken(HEAD + source, OFFERED, version) == FAILS for version in ("1.9", "2.0")]


def test_constructor_guards_methods_and_subclasses() -> None:
    source = """
class MLP:
    def __init__(self):
        if not is_te_min_version("2.0"):
            raise RuntimeError
    def forward(self):
        te.pytorch.get(1, 2)
class Wide(MLP):
    def __init__(self):
        super().__init__()
"""
    assert at(source) == [False, True]
    in_subclass = source.replace("    def forward(self):\n        te.pytorch.get(1, 2)\n", "")
    in_subclass += "    def backward(self):\n        te.pytorch.get(1, 2)\n"
    assert at(in_subclass) == [False, True]


def test_constructor_does_not_guard_a_static_method() -> None:
    source = """
class MLP:
    def __init__(self):
        assert is_te_min_version("2.0")
    @staticmethod
    def forward():
        te.pytorch.get(1, 2)
"""
    assert at(source) == [True, True]


def test_attribute_of_the_constructor_guards_a_method() -> None:
    source = """
class MLP:
    def __init__(self, config):
        self.fused = config.fuse
        if config.fuse:
            self._check()
    def _check(self):
        if not is_te_min_version("2.0"):
            raise RuntimeError
    def forward(self):
        if self.fused:
            te.pytorch.get(1, 2)
"""
    assert at(source) == [False, True]
    assert at(source + "    def switch(self):\n        self.fused = True\n") == [True, True]


def test_callers_guard_a_private_function() -> None:
    source = """
def _impl():
    te.pytorch.get(1, 2)
def run():
    if is_te_min_version("2.0"):
        _impl()
"""
    assert at(source) == [False, True]
    assert at(source + "def other():\n    _impl()\n") == [True, True]
    assert at(source + "hooks = [_impl]\n") == [True, True]  # passed as a value: any code may call it
    assert at(source.replace("_impl", "impl")) == [True, True]


def test_checks_of_a_configuration_guard_its_uses() -> None:
    source = """
class AdamConfig:
    def __post_init__(self):
        if self.precise:
            if self.cpu:
                return
            names = inspect.signature(te.pytorch.get).parameters
            for name in ["a", "b"]:
                assert name in names
def build(config):
    if not config.cpu and config.precise:
        te.pytorch.get(1, 2)
"""
    assert at(source) == [False, False]
    assert at(source.replace('"b"', '"a"')) == [True, True]
    assert at(source.replace("not config.cpu and", "")) == [True, True]


def test_check_without_te_excludes_combinations_too() -> None:
    source = """
class LayerConfig:
    def __post_init__(self):
        if self.kv is None:
            self.kv = 1
        if self.store_fp8:
            if self.activation != F.silu or not self.gated:
                raise ValueError
def build(config):
    kw = {}
    if config.activation == F.gelu:
        if config.store_fp8:
            te.pytorch.get(1, 2)
"""
    assert at(source) == [False, False]
    assert at(source.replace("F.gelu", "F.silu")) == [True, True]


def test_imported_function_equals_itself_elsewhere() -> None:
    """Its name is written as one of each function, which must not make it another value there."""
    source = """
from megatron.core.activations import quick
class LayerConfig:
    def __post_init__(self):
        if self.store_fp8:
            if self.activation != quick:
                raise ValueError
def build(config):
    if config.activation == quick:
        if config.store_fp8:
            te.pytorch.get(1, 2)
"""
    assert at(source) == [True, True]


def test_local_names_of_two_functions_are_distinct() -> None:
    source = """
def _impl(flag):
    if not flag:
        te.pytorch.get(1, 2)
def run(flag, other):
    if flag:
        _impl(other)
"""
    assert at(source) == [True, True]
    shared = source.replace("flag", "config.flag").replace("(config.flag, other)", "(config, other)")
    shared = shared.replace("_impl(config.flag)", "_impl(config)")
    assert at(shared) == [False, False]  # the same configuration both times


def test_rebound_name_is_another_condition() -> None:
    source = """
def run(config, flag):
    if flag:
        return
    flag = config.other()
    if flag:
        te.pytorch.get(1, 2)
"""
    assert at(source) == [True, True]
    assert at(source.replace("    flag = config.other()\n", "")) == [False, False]


GONE = core({"a.py": "def f(x): ..."})


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        ("except ImportError:\n        pass", "silently-off"),
        ("except ValueError:\n        pass", "definite"),
        ("except ImportError:\n        pass\n    _load()", "definite"),
        ("except ImportError as error:\n        raise RuntimeError from error", "definite"),
        ("except ImportError as error:\n        queue.put(error)", "definite"),
    ],
)
@pytest.mark.parametrize("around", ["", "def _around():\n    _load()\n"])
def test_callers_catch_what_a_private_function_raises(around: str, handler: str, kind: str) -> None:
    """Every caller has to, or the callers of it, and none may keep the exception for another line."""
    called = "_around" if around else "_load"
    run = f"def run(queue):\n    try:\n        {called}()\n    {handler}\n"
    found = find(project(f"def _load():\n    from megatron.core.a import gone\n{around}{run}"), GONE)
    assert [finding.kind.value for finding in found] == [kind]


def test_attribute_of_a_base_guards_a_method() -> None:
    """verl's BaseModelInitializer; a class that sets the attribute again decides for itself."""
    source = """
from inspect import signature
from megatron.core.a import f
class Base:
    def __init__(self):
        self.has_stage = "stage" in signature(f).parameters
class Dense(Base):
    def build(self):
        return f(1, stage=2) if self.has_stage else f(1)
"""
    assert find(project(source), GONE) == []
    again = "    def allow(self):\n        self.has_stage = True\n"
    assert [finding.kind.value for finding in find(project(source + again), GONE)] == ["definite"]


def test_constructor_asserts_a_flag_of_another_file() -> None:
    """ms-swift's trainer asks apply_router_replay_patch, which asserts that the import did not fail."""
    caught = (
        "try:\n    from megatron.core.b import Replay\n    {0} = True\nexcept ImportError:\n    Replay = {0} = None\n"
    )
    trainer = """
class Trainer:
    def __init__(self, args):
        self.on = args.mode != "off"
        if self.on:
            apply()
    def step(self):
        if self.on:
            Replay.go()
"""
    files = {
        "util.py": f"{caught.format('HAS_REPLAY')}def apply():\n    assert HAS_REPLAY, 'upgrade'\n",
        "trainer.py": f"from util import apply\n{caught.format('IS_THERE')}{trainer}",
    }
    ends = {(finding.call_site.path, str(finding.end)) for finding in find(project(files), GONE)}
    assert ends == {("trainer.py", "None"), ("util.py", "AssertionError at util.py:7 apply")}
