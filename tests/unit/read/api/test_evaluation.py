"""Every form of guard that upstream uses, read from source text."""

from typing import TypeAlias

import pytest

from matrix.read.api.comparison import find
from matrix.read.api.provider import TRANSFORMER_ENGINE
from tests.unit.read.api.sources import breaks, broken, core, mcore, project, te

Found: TypeAlias = list[tuple[str, str]]
FOUR = "def get(enabled=False, num_layers=1, acts=True, weights=True): ..."
HEAD = """
    import transformer_engine as te
    from megatron.core.utils import get_te_version, is_te_min_version
    import packaging.version
    import inspect
"""
FAILS = [("definite", "get() takes from 0 to 4 positional arguments but 5 were given")]
FINE: Found = []


def call(body: str, head: str = "") -> str:
    """Return a function with `body`, in which CALL is a call with one argument too many."""
    text = body.replace("CALL", "te.pytorch.get(1, 2, 3, 4, 5)")
    lines = "\n".join(f"    {line}" for line in text.strip("\n").splitlines())
    return HEAD.replace("\n    ", "\n") + head + f"\ndef wrapper(config, flag):\n{lines}\n"


@pytest.mark.parametrize(
    ("body", "below", "at", "above"),
    [
        ("if is_te_min_version('1.9.0'): CALL", FINE, FAILS, FAILS),
        ("if is_te_min_version('1.9.0', check_equality=False): CALL", FINE, FINE, FAILS),
        ("if is_te_min_version('1.9.0', False): CALL", FINE, FINE, FAILS),
        ("if not is_te_min_version('1.9.0'): CALL", FAILS, FINE, FINE),
        ("if get_te_version() > packaging.version.Version('1.9.0'): CALL", FINE, FINE, FAILS),
        ("if packaging.version.parse('1.9.0') <= get_te_version(): CALL", FINE, FAILS, FAILS),
        ("if get_te_version() == packaging.version.Version('1.9.0'): CALL", FINE, FAILS, FINE),
        ("if is_te_min_version('1.9.0'):\n    pass\nelse:\n    CALL", FAILS, FINE, FINE),
        ("assert is_te_min_version('1.9.0')\nCALL", FINE, FAILS, FAILS),
        ("if not is_te_min_version('1.9.0'):\n    raise RuntimeError\nCALL", FINE, FAILS, FAILS),
        ("if not is_te_min_version('1.9.0'):\n    return None\nCALL", FINE, FAILS, FAILS),
        ("if flag:\n    assert is_te_min_version('1.9.0')\nif flag:\n    CALL", FINE, FAILS, FAILS),
        ("new = is_te_min_version('1.9.0')\nif new and flag: CALL", FINE, FAILS, FAILS),
        ("x = CALL if is_te_min_version('1.9.0') else None", FINE, FAILS, FAILS),
        ("x = is_te_min_version('1.9.0') and CALL", FINE, FAILS, FAILS),
        ("x = is_te_min_version('1.9.0') or CALL", FAILS, FINE, FINE),
        ("f = te.pytorch.get if is_te_min_version('1.9.0') else len\nf(1, 2, 3, 4, 5)", FINE, FAILS, FAILS),
        ("for v in ['1.9.0', '1.8.5']:\n    assert is_te_min_version(v)\nCALL", FINE, FAILS, FAILS),
    ],
)
def test_version_guard_decides_whether_call_is_reached(body: str, below: Found, at: Found, above: Found) -> None:
    source = call(body)
    found = [broken(source, FOUR, version) for version in ("1.8.9", "1.9.0", "1.9.0+e79d915")]
    assert found == [below, at, above]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if hasattr(te.pytorch, 'get'): CALL", FAILS),
        ("if hasattr(te.pytorch, 'gone'): CALL", FINE),
        ("if getattr(te.pytorch, 'gone', None) is not None: CALL", FINE),
        ("if 'acts' in inspect.signature(te.pytorch.get).parameters: CALL", FAILS),
        ("if 'stream' in inspect.signature(te.pytorch.get).parameters: CALL", FINE),
        ("if config.flag and flag.other() == 3: CALL", FAILS),  # a condition of the run, independent of TE
        ("if isinstance(flag, te.pytorch.get): CALL", FAILS),
    ],
)
def test_api_guard_decides_whether_call_is_reached(body: str, expected: Found) -> None:
    assert broken(call(body), FOUR) == expected


@pytest.mark.parametrize(
    "body",
    [
        "if len(inspect.signature(te.pytorch.get).parameters) > 4: CALL",
        "if get_te_version().major > 1: CALL",
        "if str(te.__version__).startswith('1.9'): CALL",
        "if 'get' in dir(get_te_version()): CALL",
        "if parse_my_way(te.__version__) > (1, 9): CALL",
    ],
)
def test_unclear_guard_makes_the_finding_possible(body: str) -> None:
    assert [("possible", FAILS[0][1])] == broken(call(body), FOUR)


def test_assert_guards_keyword_under_the_same_condition() -> None:
    collected = "kw = {}\nif config.wide:\n    assert is_te_min_version('1.9.0')\n    kw['wide'] = 1\n"
    source = call(f"{collected}te.pytorch.get(**kw)")
    assert broken(source, FOUR, "1.8.0") == FINE
    assert broken(source, FOUR, "1.9.0") == [("definite", "get() got an unexpected keyword argument 'wide'")]


def test_super_call_binds_to_the_te_constructor() -> None:
    source = """
        import transformer_engine as te
        class Middle(te.pytorch.Linear):
            pass
        class TELinear(Middle):
            def __init__(self, size, **kw):
                super().__init__(size, bias=True, ub_name=1)
            def forward(self, x):
                return super().forward(x, scale=2)
            def reset(self):
                self.clear(1)
        Middle(3, 4, 5)
    """
    offered = """
        class Linear:
            def __init__(self, in_features, bias=True): ...
            def forward(self, x): ...
            def clear(self): ...
    """
    assert {
        "Linear.__init__() got an unexpected keyword argument 'ub_name'",
        "Linear.forward() got an unexpected keyword argument 'scale'",
        "Linear.clear() takes 1 positional argument but 2 were given",
        "Linear.__init__() takes from 2 to 3 positional arguments but 4 were given",
    } == {message for _, message in broken(source, offered)}


def test_code_after_a_failed_import_has_no_finding() -> None:
    source = """
        from transformer_engine.pytorch import gone
        from transformer_engine.pytorch import missing
        def wrapper():
            gone(1)
    """
    assert broken(source, FOUR) == [("definite", "cannot import name 'gone' from 'transformer_engine.pytorch'")]


def test_upstreams_own_error_is_no_finding() -> None:
    """A handler that raises another error is a guard, like an assert; a bare raise is not."""
    replaced = "try:\n    te.pytorch.gone()\nexcept AttributeError:\n    raise ValueError('needs TE 2.9')"
    raised_again = "try:\n    te.pytorch.gone()\nexcept AttributeError:\n    print('oops')\n    raise"
    assert broken(call(replaced), FOUR) == FINE
    assert [kind for kind, _ in broken(call(raised_again), FOUR)] == ["definite"]


def test_narrow_handler_does_not_catch_a_missing_name() -> None:
    source = """
        try:
            from transformer_engine.pytorch import gone
        except ModuleNotFoundError:
            gone = None
    """
    assert broken(source, FOUR) == [("definite", "cannot import name 'gone' from 'transformer_engine.pytorch'")]


def test_fallback_to_another_te_name_is_no_finding() -> None:
    source = """
        try:
            from transformer_engine.pytorch import cpu_offload_v1 as cpu_offload
        except ImportError:
            try:
                from transformer_engine.pytorch import get as cpu_offload
            except ImportError:
                cpu_offload = None
    """
    assert broken(source, FOUR) == FINE
    fallback_gone = "cannot import name 'get' from 'transformer_engine.pytorch'; swallowed: cpu_offload = None"
    assert [("silently-off", fallback_gone)] == broken(source, "x = 1")


def test_version_check_semantics_are_read_from_source() -> None:
    calls = mcore(
        {
            "utils.py": """
                from packaging.version import Version
                from importlib.metadata import version
                def is_te_min_version(text, check_equality=True):
                    return Version(version("transformer-engine")) < Version(text)
            """,
            "adapter.py": call("if is_te_min_version('1.9.0'): CALL").replace("get_te_version, ", ""),
        }
    )
    assert [broken(calls, te(FOUR), version) for version in ("1.8.0", "1.9.0")] == [FAILS, FINE]


REASSIGNED = """
import transformer_engine as te
_READY = False
def start():
    global _READY
    _READY = True
def run():
    assert _READY
    te.pytorch.get(1, 2)
"""


def test_reassigned_constant_is_not_fixed() -> None:
    """random.py of Megatron-LM: the constant is False when the module is imported, and a function sets it."""
    assert broken(REASSIGNED, "def get(a): ...\n") == [
        ("definite", "get() takes 1 positional argument but 2 were given")
    ]


def test_hasattr_of_a_default_is_decided() -> None:
    """hasattr(getattr(te, "x", None), "y") is false where x is missing."""
    source = """
    import transformer_engine.pytorch as te
    if hasattr(getattr(te, "ops", None), "get"):
        te.ops.get(1, 2)
    """

    assert broken(source, "") == []
    assert broken(source, "class ops:\n    @staticmethod\n    def get(a): ...\n") != []


VERSIONS = """
import importlib.metadata
import operator as op
from packaging.version import parse
SIGNS = {">": op.gt, ">=": op.ge, "==": op.eq}
running = parse(importlib.metadata.version("transformer-engine"))
def compare(name_or_version, sign, text):
    if sign not in SIGNS.keys():
        raise ValueError(sign)
    sign = SIGNS[sign]
    if isinstance(name_or_version, str):
        name_or_version = parse(importlib.metadata.version(name_or_version))
    return sign(name_or_version, parse(text))
def is_te_version(sign, text):
    return compare(running, sign, text)
"""


@pytest.mark.parametrize("condition", ["is_te_version('>=', '1.9.0')", "compare('transformer-engine', '>=', '1.9.0')"])
def test_operator_from_a_table_compares_versions(condition: str) -> None:
    """accelerate's is_torch_version and compare_versions."""
    calls = mcore(
        {
            "versions.py": VERSIONS,
            "adapter.py": f"""
        import transformer_engine as te
        from megatron.core.versions import compare, is_te_version
        def run():
            if {condition}:
                te.pytorch.get(1, 2, 3, 4, 5)
    """,
        }
    )

    assert [broken(calls, te(FOUR), version) for version in ("1.8.0", "1.9.0")] == [FINE, FAILS]


@pytest.mark.parametrize(
    "names",
    [
        "{field.name for field in dataclasses.fields(Options)}",
        "[p.name for p in inspect.signature(Options).parameters.values()]",
        "set(inspect.signature(Options).parameters.keys())",
        "getattr(Options, '__dataclass_fields__', {})",
    ],
)
def test_names_of_fields_guard_a_keyword(names: str) -> None:
    """verl passes cp_partition_mode only where PackedSeqParams has it."""
    source = f"""
        import dataclasses, inspect
        from transformer_engine.pytorch import Options
        HAS_WIDE = "wide" in {names}
        def run():
            more = {{}}
            if HAS_WIDE:
                more["wide"] = 1
            Options(**more)
    """
    offered = "import dataclasses\n@dataclasses.dataclass\nclass Options:\n    size: int = 0\n"

    assert broken(source, offered) == FINE
    unguarded = source.replace("if HAS_WIDE", "if True")
    message = "Options.__init__() got an unexpected keyword argument 'wide'"
    assert [("definite", message)] == broken(unguarded, offered)


def test_any_keyword_parameter_guards_a_keyword() -> None:
    source = """
        import inspect
        from transformer_engine.pytorch import get
        parameters = inspect.signature(get).parameters
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            get(wide=1)
    """

    assert broken(source, "def get(size=0): ...\n") == FINE
    assert broken(source.replace("wide=1", "1, 2, 3"), "def get(size=0, **others): ...\n") != FINE


def test_conditions_that_exclude_each_other_are_no_finding() -> None:
    """verl refuses ModelType.encoder_and_decoder, then asks for it: the line was shown with `where never`."""
    source = """
        import transformer_engine as te
        def run(kind):
            assert kind != getattr(te.pytorch, "WIDE", None)
            if kind == getattr(te.pytorch, "WIDE", None):
                te.pytorch.get(1, 2, 3, 4, 5)
    """

    assert broken(source, FOUR) == FINE


def test_missing_constructor_is_that_of_object() -> None:
    source = """
        from transformer_engine.pytorch import Style
        class Own(Style):
            def __init__(self):
                super().__init__()
    """

    assert broken(source, "class Style:\n    def apply(self): ...\n") == FINE


def test_replacement_behind_a_decorator_has_any_signature() -> None:
    """verl 0.9.1 ended in ValueError: not a signature: '~'."""
    fork = project("import megatron.core.schedule as schedule\n@unknown\ndef step(x): ...\nschedule.step = step\n")

    assert breaks(fork, core({"schedule.py": "def step(x, y): ...\ndef run(x):\n    step(x, y=1)\n"})) == []


MODULE = "from megatron.core import x\nimport importlib.util, sys, typing, types\nimport megatron.core\n"
CORE_VERSION = "from packaging.version import Version\nCORE = Version(megatron.core.__version__)\n"


@pytest.mark.parametrize(
    "code",
    [
        "if typing.TYPE_CHECKING:\n    from megatron.core.gone import Y",
        "if typing.TYPE_CHECKING or False:\n    from megatron.core.gone import Y",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from megatron.core.gone import Y",
        f"{CORE_VERSION}TABLE = {{'gone': CORE >= Version('0.17')}}\nif TABLE['gone']:\n    x.gone()",
        f"{CORE_VERSION}SINCE = {{'gone': Version('0.17')}}\ndef has(name):\n    return CORE >= SINCE[name]\n"
        "if has('gone'):\n    x.gone()",
        "if all(hasattr(x, name) for name in ('f', 'gone')):\n    x.gone()",
        "if all([hasattr(x, 'f'), hasattr(x, 'gone')]):\n    x.gone()",
        "if any((hasattr(x, 'gone'), False)):\n    x.gone()",
        "HAVE = hasattr(x, 'gone')\nif HAVE:\n    x.gone()",
        "HAVE = getattr(x, 'gone', None) is not None\nif HAVE:\n    x.gone()",
        "def patch():\n    x.gone = 1\npatch()\nx.gone()",
        "setattr(x, 'gone', 1)\nx.gone()",
        "sys.modules['megatron.core.gone'] = types.ModuleType('gone')\nfrom megatron.core.gone import Y",
        "if importlib.util.find_spec('megatron.core.gone'):\n    from megatron.core.gone import Y",
        "HAVE = importlib.util.find_spec('megatron.core.gone') is not None\nif HAVE:\n    import megatron.core.gone",
    ],
)
def test_idiom_of_consumers_is_a_guard(code: str) -> None:
    assert breaks(project(MODULE + code), core({"x.py": "def f(): ..."})) == []


@pytest.mark.parametrize(
    "code",
    [
        "if not typing.TYPE_CHECKING:\n    x.gone()",
        f"{CORE_VERSION}TABLE = {{'gone': CORE >= Version('0.1')}}\nif TABLE['gone']:\n    x.gone()",
        "if any(hasattr(x, name) for name in ('f', 'gone')):\n    x.gone()",
        "if all([hasattr(x, 'f')]):\n    x.gone()",
        "if importlib.util.find_spec('megatron.core.x'):\n    x.gone()",
        "if hasattr(x, 'gone'):\n    x.gone = 1\nx.gone()",
    ],
)
def test_idiom_that_holds_is_no_guard(code: str) -> None:
    message = "module 'megatron.core.x' has no attribute 'gone'"
    assert breaks(project(MODULE + code), core({"x.py": "def f(): ..."})) == [("definite", message)]


def test_class_attribute_of_a_decorator_is_a_condition() -> None:
    """Megatron-Bridge passes arguments to a provider only where a decorator has set PROVIDER_CLASS."""
    source = """
        from megatron.core.x import Provider
        def register(provider):
            def wrap(cls):
                cls.PROVIDER_CLASS = provider
                return cls
            return wrap
        class Bridge:
            PROVIDER_CLASS = None
            def provide(self, values):
                if self.PROVIDER_CLASS is not None:
                    return self.PROVIDER_CLASS(rope=1)
        @register(Provider)
        class MLABridge(Bridge): ...
    """
    assert breaks(project(source), core({"x.py": "class Provider:\n    def __init__(self, a=1): ..."})) == []


@pytest.mark.parametrize(("test", "kind"), [("self.PROVIDER", "possible"), ("kind", "definite")])
def test_class_of_a_constant_is_unclear(test: str, kind: str) -> None:
    """Megatron-Bridge collects _mla_rope_params only for bridges whose PROVIDER_CLASS is a class for MLA."""
    source = f"""
        from megatron.core.x import f
        class Bridge:
            PROVIDER = None
            def provide(self, kind):
                arguments = {{}}
                if issubclass({test}, Special):
                    arguments["rope"] = 1
                return f(**arguments)
    """
    found = breaks(project(source), core({"x.py": "def f(): ..."}))
    assert [row[0] for row in found] == [kind]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("is_te_min_version('2.8.0')", []),
        ("is_te_min_version('2.7.0')", ["definite"]),
        ("is_te_min_version('2.7.0', check_equality=False)", []),
        ("get_te_version() >= Version('2.8.0')", []),
        ("get_te_version() >= Version('2.7.0')", ["definite"]),
        ("is_te_min_version(wanted)", ["definite"]),
    ],
)
def test_version_check_of_megatron_core_is_known(test: str, expected: list[str]) -> None:
    """Megatron-Bridge and ms-swift import the check; nothing of megatron-core is read with them."""
    source = f"""
        from megatron.core.utils import get_te_version, is_te_min_version
        from packaging.version import Version
        from transformer_engine.pytorch import f
        def run(wanted):
            if {test}:
                f(gone=1)
    """
    calls = project(source, TRANSFORMER_ENGINE)
    assert [finding.kind.value for finding in find(calls, te("def f(): ...", "2.7.0"))] == expected


@pytest.mark.parametrize(
    "test", ["signature(f).parameters.get('y', None) is not None", "signature(f).parameters.get('y')"]
)
def test_parameter_that_is_looked_up_is_known(test: str) -> None:
    source = f"from inspect import signature\nfrom megatron.core.x import f\nif {test}:\n    f(y=1)\n"

    assert breaks(project(source), core({"x.py": "def f(): ..."})) == []
    assert breaks(project(source), core({"x.py": "def f(y, z): ..."}))[0][0] == "definite"


def test_default_of_an_added_name_leaves_no_condition() -> None:
    """slime keeps torch's own function in the module, under another name."""
    source = """
        import megatron.core.x as x
        _GROUP = None
        def patch():
            x.old = x.f
        def init():
            global _GROUP
            if _GROUP is None:
                make = getattr(x, "old", x.f)
                _GROUP = make()
        def worker():
            init()
            x.f(gone=1)
    """
    assert [finding.guard for finding in find(project(source), core({"x.py": "def f(): ..."}))] == [""]
