"""Which statements are reached, under which guard: within a body, and from the rest of the package."""

from __future__ import annotations

import textwrap

import pytest

from matrix.read.api.comparison import find
from matrix.read.api.guard import AllOf, AnyOf, Config, Guard, Loads, Not, TeVersion, all_of, any_of, negate
from matrix.read.api.provider import Use
from matrix.read.api.statements import MOST_ROUNDS
from tests.unit.read.api.sources import broken, core, mcore, project

OLD, NEW = TeVersion("<", "2.0"), TeVersion(">=", "2.0")
FLAG, WIDE = Config("config.flag"), Config("config.wide")
HEAD = """
import transformer_engine as te
from megatron.core.utils import is_te_min_version
NEW = is_te_min_version("2.0")
def run(config):
"""


def calls(body: str) -> dict[str, Guard]:
    """Return the guard of each call in a function: te.pytorch.NAME() -> guard, without the imports before it."""
    source = HEAD + textwrap.indent(textwrap.dedent(body), "    ")
    found: dict[str, list[Guard]] = {}
    for use in mcore(source).uses:
        if use.kind == "call":
            found.setdefault(use.path.rpartition(".")[2], []).append(without_loads(use.guard))
    return {name: any_of(*guards) for name, guards in found.items()}


def without_loads(guard: Guard) -> Guard:
    """Return a guard with every import and attribute before the line counted as present."""
    if isinstance(guard, Loads):
        return True
    if isinstance(guard, Not):
        return negate(without_loads(guard.part))
    if isinstance(guard, (AllOf, AnyOf)):
        return (all_of if isinstance(guard, AllOf) else any_of)(*map(without_loads, guard.parts))
    return guard


def test_branches_are_guarded_by_their_conditions() -> None:
    body = """
        if NEW:
            te.pytorch.one()
        elif config.flag:
            te.pytorch.two()
        else:
            te.pytorch.three()
        te.pytorch.after()
    """
    assert calls(body) == {
        "one": NEW,
        "two": all_of(OLD, FLAG),
        "three": all_of(OLD, negate(FLAG)),
        "after": True,
    }


@pytest.mark.parametrize("leave", ["return", "raise ValueError", "assert False"])
def test_early_exit_guards_the_rest(leave: str) -> None:
    assert calls(f"if config.flag:\n    {leave}\nte.pytorch.after()") == {"after": negate(FLAG)}
    assert calls(f"{leave}\nte.pytorch.after()") == {}
    both = f"if config.flag:\n    {leave}\nelse:\n    {leave}\nte.pytorch.after()"
    assert calls(both) == {}


def test_exit_in_a_nested_branch_needs_both_conditions() -> None:
    body = """
        if config.flag:
            if NEW:
                return
            te.pytorch.inner()
        te.pytorch.after()
    """
    assert calls(body) == {"inner": all_of(FLAG, OLD), "after": any_of(OLD, negate(FLAG))}


def test_type_checking_branch_is_not_read() -> None:
    body = "if TYPE_CHECKING:\n    te.pytorch.never()\nelse:\n    te.pytorch.always()"
    assert calls(body) == {"always": True}


def test_name_bound_in_both_branches_has_both_values() -> None:
    body = """
        if NEW:
            name = "a"
        else:
            name = "b"
        if name == "a":
            te.pytorch.one()
        if name == "b":
            te.pytorch.two()
    """
    assert calls(body) == {"one": NEW, "two": OLD}


def test_name_bound_in_one_branch_keeps_earlier_value() -> None:
    body = """
        name = None
        if NEW:
            name = "a"
        if name is not None:
            te.pytorch.one()
        if name is None:
            te.pytorch.two()
    """
    assert calls(body) == {"one": NEW, "two": OLD}


def test_value_of_a_left_branch_does_not_remain() -> None:
    body = """
        name = "a"
        if NEW:
            name = "b"
            return
        if name == "b":
            te.pytorch.never()
        te.pytorch.after()
    """
    assert calls(body) == {"after": OLD}


def test_loop_over_constants_is_read_item_by_item() -> None:
    body = """
        for name in ("a", "b"):
            if name == "b":
                te.pytorch.second()
            if name == "c":
                te.pytorch.never()
        else:
            te.pytorch.after()
    """
    assert calls(body) == {"second": True, "after": True}


def test_long_or_unknown_loop_is_read_once() -> None:
    items = [str(number) for number in range(MOST_ROUNDS + 1)]
    for iterated in (repr(items), "config.items"):
        found = calls(f"for name in {iterated}:\n    if name == 'x':\n        te.pytorch.one()\nte.pytorch.after()")
        assert found["after"] is True
        assert found["one"] not in (True, False)  # a condition of the run


def test_break_ends_only_its_branch() -> None:
    body = """
        while config.flag:
            if NEW:
                break
            te.pytorch.inner()
        te.pytorch.after()
    """
    assert calls(body) == {"inner": OLD, "after": True}


def test_value_of_a_loop_may_be_missing() -> None:
    body = """
        name = None
        for item in config.items:
            name = "a"
        if name is None:
            te.pytorch.without()
        if name == "a":
            te.pytorch.within()
    """
    assert calls(body) == {"without": negate(Config("a loop")), "within": Config("a loop")}


def test_cases_of_a_match_are_run_conditions() -> None:
    body = """
        match config.kind:
            case "a":
                te.pytorch.one()
            case _:
                te.pytorch.two()
        te.pytorch.after()
    """
    assert calls(body) == {"one": Config("a case"), "two": Config("a case"), "after": True}


def test_with_block_is_reached_like_its_statement() -> None:
    assert calls("with te.pytorch.fp8() as context:\n    te.pytorch.inner(context)") == {"fp8": True, "inner": True}


def guard_of(source: str, name: str) -> Guard:
    """Return the guard of the call te.pytorch.NAME() in a module."""
    [found] = [use.guard for use in mcore(source).uses if use.kind == "call" and use.path.endswith(f".{name}")]
    return found


def test_handler_runs_where_the_import_fails() -> None:
    source = """
        import transformer_engine as te
        try:
            from transformer_engine.pytorch import gone
            te.pytorch.inside()
        except ImportError:
            te.pytorch.handler()
        else:
            te.pytorch.otherwise()
        finally:
            te.pytorch.at_last()
    """
    loads = Loads("transformer_engine.pytorch:gone")
    assert loads in parts(guard_of(source, "inside"))
    assert guard_of(source, "handler") == negate(loads)
    assert loads in parts(guard_of(source, "otherwise"))
    assert not {loads, negate(loads)} & parts(guard_of(source, "at_last"))


def parts(guard: Guard) -> set[Guard]:
    return set(guard.parts) if isinstance(guard, AllOf) else {guard}


def test_handler_that_leaves_guards_the_rest() -> None:
    source = """
        import transformer_engine as te
        def run():
            try:
                from transformer_engine.pytorch import gone
            except ImportError:
                return
            te.pytorch.after()
    """
    assert Loads("transformer_engine.pytorch:gone") in parts(guard_of(source, "after"))
    kept = source.replace("return", "pass")
    assert Loads("transformer_engine.pytorch:gone") not in parts(guard_of(kept, "after"))


def swallowed(handler: str, statement: str = "from transformer_engine.pytorch import gone") -> Use:
    """Return the use in a try body that has this handler."""
    source = f"import transformer_engine as te\ntry:\n    {statement}\n{textwrap.dedent(handler)}"
    [use] = [use for use in mcore(source).uses if use.site.line == 3 and "gone" in use.path]
    return use


def test_handler_s_effect_is_recorded() -> None:
    both = ("ModuleNotFoundError", "ImportError")
    use = swallowed("except ImportError:\n    gone = None")
    assert (set(use.swallowed), use.effect, use.refused) == (set(both), "gone = None", ())
    assert swallowed("except ImportError:\n    pass").effect == "nothing"
    assert swallowed("except ModuleNotFoundError:\n    gone = None").swallowed == ("ModuleNotFoundError",)
    assert swallowed("except (KeyError, ImportError):\n    gone = 1").effect == "gone = 1"
    assert set(swallowed("except:\n    gone = te.pytorch.get").swallowed) > set(both)
    assert swallowed("except:\n    gone = te.pytorch.get").fallback


def test_handler_that_raises_replaces_or_repeats_the_error() -> None:
    replaced = swallowed("except ImportError:\n    raise ValueError('old')")
    assert (replaced.swallowed, set(replaced.refused)) == ((), {"ModuleNotFoundError", "ImportError"})
    again = swallowed("except ImportError:\n    raise")
    assert (again.swallowed, again.refused) == ((), ())


def test_inner_handler_comes_before_the_outer() -> None:
    handlers = "except ImportError:\n    gone = 1"
    inner = "try:\n        from transformer_engine.pytorch import gone\n    except ImportError:\n        gone = 2"
    source = f"try:\n    {inner}\n{handlers}"
    [use] = [use for use in mcore(source).uses if use.path.endswith(":gone")]
    assert use.effect == "gone = 2"


OFFERED = "def get(a): ..."
VERSIONS = "import transformer_engine as te\nfrom megatron.core.utils import is_te_min_version\nimport inspect\n"
FAILS = [("definite", "get() takes 1 positional argument but 2 were given")]


def at(source: str) -> list[bool]:
    """Return whether the break is found below and at TE 2.0."""
    return [broken(VERSIONS + source, OFFERED, version) == FAILS for version in ("1.9", "2.0")]


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
