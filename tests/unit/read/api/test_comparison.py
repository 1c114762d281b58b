"""What is judged of a pair: breaks behind others, guards, ends of caught exceptions, changed defaults."""

from dataclasses import replace

import pytest

from matrix.read.api.comparison import calls_to, changed, find
from matrix.read.api.finding import Finding, FindingKind
from matrix.read.api.provider import TORCH, Site
from tests.unit.read.api.sources import Past, broken, core, findings, mcore, project, te, torch

OFFLOAD = """
    def get_cpu_offload_context(enabled=False, num_layers=1, {}offload_activations=True, offload_weights=True): ...
"""
BLOCK = """
    from megatron.core.utils import is_te_min_version
    from transformer_engine.pytorch import get_cpu_offload_context as _get
    def get_cpu_offload_context(enabled, num_layers, model_layers, activation_offloading, weight_offloading):
        if is_te_min_version("1.9.0", check_equality=False):
            return _get(enabled, num_layers, model_layers, activation_offloading, weight_offloading)
        return _get(enabled, num_layers, activation_offloading, weight_offloading)
"""


def test_line_after_a_certain_exception_is_unreachable() -> None:
    source = """
        import transformer_engine as te
        def run(config):
            if config.fp8:
                te.pytorch.pad(align=1)
                te.pytorch.pad(align=2, size=3)
            te.pytorch.pad(size=4)
    """
    found = findings(source, "def pad(): ...")
    assert [(f.call_site.line, f.message) for f in found] == [
        (5, "pad() got an unexpected keyword argument 'align'"),
        (7, "pad() got an unexpected keyword argument 'size'"),  # reached where config.fp8 is off
    ]


def test_breaks_behind_another_break_name_it() -> None:
    """What an import is missing, or a certain exception, hides nothing that has to be mended, too."""
    source = """
        import transformer_engine as te
        from transformer_engine.pytorch import gone
        from transformer_engine.pytorch import missing
        gone(1)
        def run(config):
            te.pytorch.pad(align=1)
            te.pytorch.pad(size=4)
        def wrap():
            try:
                from transformer_engine.pytorch import other
            except ImportError:
                other = None
    """
    found = find(mcore(source), te("def pad(): ..."))
    first = "megatron/core/adapter.py:3 raises before"
    assert [(f.call_site.line, f.kind.value, f.masked) for f in found] == [
        (3, "definite", ""),
        (4, "definite", first),
        (7, "definite", first),
        (8, "definite", first),
        (11, "silently-off", first),
    ]
    again = find(
        mcore("import transformer_engine as te\ndef run():\n    te.pytorch.pad(a=1)\n    te.pytorch.pad(b=1)"),
        te("def pad(): ..."),
    )
    assert [f.masked for f in again] == ["", "megatron/core/adapter.py:3 run raises before"]


def test_first_wrong_keyword_per_condition_is_reported() -> None:
    source = """
        import transformer_engine as te
        def run(config):
            kw = {}
            if config.overlap:
                kw["ag"] = 1
                kw["rs"] = 1
            if config.other:
                kw["name"] = 1
            te.pytorch.get(**kw)
    """
    found = findings(source, "def get(): ...")
    assert [(f.message, f.guard) for f in found] == [
        ("get() got an unexpected keyword argument 'ag'", "config.overlap"),
        ("get() got an unexpected keyword argument 'name'", "config.other"),
    ]


def test_findings_are_deterministic() -> None:
    assert findings(BLOCK, OFFLOAD.format("")) == findings(BLOCK, OFFLOAD.format(""))


def test_guard_is_shown_for_this_te() -> None:
    """Conditions that this TE decides are left out: an import that worked, a branch that another version takes."""
    source = """
        import transformer_engine as te
        from megatron.core.utils import is_te_min_version
        try:
            from transformer_engine.pytorch import get
        except ImportError:
            get = None
        def run(config):
            if (config.fp8 or config.fp4) and (is_te_min_version("2.0") or config.wide) and is_te_min_version("1.0"):
                te.pytorch.put(1)
    """
    [old] = findings(source, "def get(): ...\ndef put(): ...", "1.9.0")
    [new] = findings(source, "def get(): ...\ndef put(): ...", "2.1.0")
    assert old.guard == "TE >= 1.0 and (config.fp8 or config.fp4) and config.wide"
    assert new.guard == "TE >= 1.0 and (config.fp8 or config.fp4)"


def test_keyword_of_some_versions_is_missing_on_others() -> None:
    """A call that binds with all its keywords is still checked under their guards."""
    source = """
        import transformer_engine as te
        from megatron.core.utils import is_te_min_version
        def run(config):
            more = {}
            if is_te_min_version("2.0"):
                more["group"] = 1
            te.pytorch.get(**more)
    """
    assert broken(source, "def get(*, group): ...", "2.0") == []
    assert broken(source, "def get(*, group): ...", "1.9") == [
        ("definite", "get() missing 1 required keyword-only argument: 'group'")
    ]


EXTENSION = """
    try:
        from transformer_engine.pytorch import FusedRoPE
        def fused_rope(t):
            return FusedRoPE(t)
    except ImportError:
        pass
    try:
        from transformer_engine.pytorch import permute
        fused_permute = permute
    except ImportError:
        fused_permute = None
"""
ROPE = """
    try:
        from apex.functional import fused_rope
    except ImportError:
        try:
            from megatron.core.extension import fused_rope
        except:
            fused_rope = None
"""
CONFIG = """
    class TransformerConfig:
        def __post_init__(self):
            if self.seq < 1:
                raise ValueError("too short")
            if self.apply_rope_fusion:
                from megatron.core.rope import fused_rope
                if fused_rope is None:
                    raise ValueError("apply_rope_fusion is not available.")
"""


def ends(files: dict[str, str] | str, offered: str = "") -> list[tuple[str, str, str, str]]:
    """Return kind, exception, guard and end of each finding."""
    calls = mcore(files)
    return [(f.kind.value, f.error, f.guard, str(f.line) if f.end else "") for f in find(calls, te(offered))]


def test_missing_name_ends_in_check_of_configuration() -> None:
    """FusedRoPEFunc in core 0.10 - 0.12: no name remains, another module makes it None, a third one raises."""
    files = {"extension.py": EXTENSION.replace("permute", "FusedRoPE"), "rope.py": ROPE, "config.py": CONFIG}
    end = "megatron/core/config.py:9 TransformerConfig.__post_init__"
    expected = ("definite", "ValueError", "config.apply_rope_fusion and apex is not installed", end)
    assert expected in ends(files)
    assert ends(files, "FusedRoPE = 1") == []


@pytest.mark.parametrize(
    ("code", "exception", "line"),
    [
        ("if fused_permute is None:\n        raise ValueError('too old')", "ValueError", 11),
        ("assert fused_permute is not None, 'too old'", "AssertionError", 10),
        ("fused_permute(tokens)", "TypeError", 10),
        ("fused_permute.apply(tokens)", "AttributeError", 10),
        (
            "if fused_permute is not None:\n        return fused_permute(tokens)\n    raise RuntimeError",
            "RuntimeError",
            12,
        ),
    ],
)
def test_missing_name_ends_where_it_is_needed(code: str, exception: str, line: int) -> None:
    """fused_permute of moe_utils.py."""
    source = f"""
try:
    from transformer_engine.pytorch import permute as fused_permute
except ImportError:
    fused_permute = None


def run(tokens):
    \"\"\"Permute.\"\"\"
    {code}
"""
    assert ends(source) == [("definite", exception, "", f"megatron/core/adapter.py:{line} run")]
    assert ends(source, "def permute(tokens): ...") == []


@pytest.mark.parametrize(
    ("code", "older", "kind"),
    [
        ("if fused_permute is None:\n        raise ValueError", "def permute(tokens): ...", "definite"),
        ("if fused_permute is None:\n        raise ValueError", "", "silently-off"),
        ("if fused_permute is None:\n        raise ImportError('update TE')", "", "silently-off"),
        ("assert fused_permute is not None", "", "silently-off"),
        ("fused_permute(tokens)", "", "definite"),
    ],
)
def test_refusal_of_a_newer_feature_is_no_break(code: str, older: str, kind: str) -> None:
    """Upstream's own error for what no older release had, such as NCCL EP with Transformer Engine before 2.17."""
    calls = mcore(f"""
try:
    from transformer_engine.pytorch import permute as fused_permute
except ImportError:
    fused_permute = None


def run(tokens):
    {code}
""")
    past = Past(te("", version="2.1.0"), te(older, version="2.0.0"), te("def permute(tokens): ...", version="2.2.0"))
    (finding,) = find(calls, te("", version="2.1.0"), history=past)
    assert (finding.kind.value, bool(finding.end)) == (kind, True)


@pytest.mark.parametrize(
    "code",
    [
        "return fused_permute(tokens) if fused_permute else tokens",
        "if fused_permute is None:\n        if tokens is None:\n            raise ValueError('no tokens')",
        "try:\n        fused_permute(tokens)\n    except TypeError:\n        pass",
        "if is_te_min_version('2.0'):\n        fused_permute(tokens)",
        "if len(inspect.signature(te.pytorch.pad).parameters) > 3:\n        fused_permute(tokens)",
    ],
)
def test_missing_name_is_silent_where_none_is_allowed(code: str) -> None:
    """A raise of the slow path is about its own arguments."""
    source = f"""
import inspect
import transformer_engine as te
from megatron.core.utils import is_te_min_version
try:
    from transformer_engine.pytorch import permute as fused_permute
except ImportError:
    fused_permute = None
def run(tokens):
    {code}
"""
    assert [row[0] for row in ends(source, "def pad(): ...")] == ["silently-off"]


def test_stub_that_raises_is_an_end() -> None:
    source = """
    try:
        from transformer_engine.pytorch import permute
        def run(tokens):
            return permute(tokens)
    except ImportError:
        def run(tokens):
            raise ImportError("Please install a newer TE.")
    """
    assert ends(source) == [("definite", "ImportError", "", "megatron/core/adapter.py:8 run")]


def test_import_of_unbound_name_is_an_end() -> None:
    files = {
        "transformer_engine.py": EXTENSION.replace("permute", "FusedRoPE"),
        "rope.py": "from .transformer_engine import fused_rope\n",
    }
    assert ("definite", "ImportError", "", "megatron/core/rope.py:1") in ends(files)


WRITER = """
    from torch.distributed.checkpoint.filesystem import _write_item
    class Writer:
        def write(self, items, queue):
            try:
                output = [_write_item(item, 1) for item in items]
            except Exception as error:
                {}
            queue.put(output)
        def results(self):
            results = self.queue.get()
            if isinstance(results, Exception):
                raise RuntimeError("Worker failure") from results
"""


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        ("output = (0, error)", FindingKind.DEFINITE),
        ("queue.put(error)", FindingKind.DEFINITE),
        ("output = str(error)", FindingKind.SILENTLY_OFF),
        ("logger.error(error)", FindingKind.SILENTLY_OFF),
    ],
)
def test_stored_exception_ends_where_it_is_raised(handler: str, kind: FindingKind) -> None:
    """FileSystemWriterAsync of core 0.6 - 0.11: the writer stores the exception, the main process raises another."""
    offered = torch({"checkpoint/__init__.py": "", "checkpoint/filesystem.py": "def _write_item(a, b, c): ..."})
    [finding] = find(project(WRITER.format(handler), TORCH), offered)
    end = "RuntimeError at train.py:13 Writer.results" if kind is FindingKind.DEFINITE else "None"
    assert (finding.kind, str(finding.end)) == (kind, end)


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ("_STARTED = False\n    def begin():\n        global _STARTED\n        _STARTED = True", "definite"),
        ("_STARTED = compute()", "possible"),
        ("_STARTED = False", "possible"),
    ],
)
def test_state_of_provider_is_condition_of_run(start: str, kind: str) -> None:
    """ep._BOOTSTRAPPED is False until ep_bootstrap sets it; a constant that nothing sets may be what a build has."""
    source = """
    from transformer_engine.pytorch import ep
    def run(group):
        if ep._STARTED:
            return
        ep.bootstrap(group, 1)
    """
    offered = te({"pytorch/ep.py": f"    {start}\n    def bootstrap(group): ...\n"})
    assert [finding.kind.value for finding in find(mcore(source), offered)] == [kind]


def test_end_is_that_of_its_own_file() -> None:
    """Another file that catches the same failure has another fallback."""
    source = "try:\n    from transformer_engine.pytorch import adam\nexcept ImportError:\n    adam = None\n"
    files = {"a.py": f"{source}def step():\n    return adam(1) if adam else 0\n", "b.py": f"{source}adam(1)\n"}
    assert [row[0] for row in ends(files)] == ["silently-off", "definite"]


@pytest.mark.parametrize(
    ("call", "old", "new", "message"),
    [
        ("make(1)", "size, fast=True", "size, fast=False", "without 'fast': its default is False, not True"),
        ("make(1, fast=True)", "size, fast=True", "size, fast=False", None),
        ("make(1, False)", "size, fast=True", "size, fast=False", None),
        ("make(*sizes)", "size, fast=True", "size, fast=False", None),
        ("make(1, **options)", "size, fast=True", "size, fast=False", None),
        ("make(1)", "size, fast=True", "size, fast=None", None),  # the release decides
        ("make(1)", "size, fast=False", "size, fast='deprecated'", None),
        ("make(1)", "size, scale=0", "size, scale=0.0", None),
        ("is_te_min_version('2.3.0') and make(1)", "size, fast=True", "size, fast=False", None),
        ("len(inspect.signature(make).parameters) > 3 and make(1)", "size, fast=True", "size, fast=False", None),
    ],
)
def test_argument_left_out_gets_a_changed_default(call: str, old: str, new: str, message: str | None) -> None:
    """What stands for "as this release likes", and a call written for the new default, are no change."""
    calls = mcore(
        f"""
import inspect
from megatron.core.utils import is_te_min_version
from transformer_engine.pytorch import make

def build(sizes, options):
    {call}
"""
    )
    tested, later = (
        te(f"def make({parameters}): ...", version) for parameters, version in ((old, "2.2.0"), (new, "2.3.0"))
    )

    assert [finding.message for finding in changed(calls, later, tested)] == [message] * (message is not None)
    assert changed(calls, tested, tested) == []


@pytest.mark.parametrize(
    ("use", "masked"), [("a.PRIVATE", ""), ("from megatron.core.a import PRIVATE", "train.py:2 raises before")]
)
def test_attribute_of_no_release_masks_nothing(use: str, masked: str) -> None:
    """torch.cuda.FloatTensor is in no wheel for macOS, and every torch with CUDA has it. An import ends the file."""
    source = f"from megatron.core import a\n{use}\na.f(1, new=2)\na.PRIVATE\n"
    old, new = core({"a.py": "def f(x): ..."}, "0.15.0"), core({"a.py": "def f(x, new): ..."}, "0.16.0")
    found = find(project(source), old, history=Past(old, new))

    assert (found[0].masked, found[1].masked) == ("no recorded release has it", masked)
    assert found[1].callee.endswith(".f")


def test_calls_to_a_function_are_reached() -> None:
    """With what certainly raises in the functions that make them: not what is caught there, nor raised elsewhere."""
    source = """
        import transformer_engine as te
        from megatron.core.utils import is_te_min_version
        def run():
            te.pytorch.pad(1)
            if is_te_min_version("9"):
                te.pytorch.pad(2)
            try:
                te.pytorch.gone
            except AttributeError:
                pass
            te.pytorch.crop(new=1)
            return te.pytorch.pad
        def other():
            te.pytorch.crop(newer=1)
    """
    reached, breaks = calls_to("pad", mcore(source), te("def pad(size): ...\ndef crop(): ..."))
    assert [use.site.line for use in reached] == [5]
    assert [finding.call_site.line for finding in breaks] == [12]


def test_finding_has_both_sides_and_the_callee() -> None:
    source = "import transformer_engine as te\ndef run(config):\n    if config.wide:\n        te.pytorch.make(1)\n"
    tested, later = (te(f"def make(size, fast={fast}): ...", version) for fast, version in ((1, "2.2.0"), (2, "2.3.0")))
    site = Site("megatron/core/adapter.py", 4, "run")
    left_out = Finding(
        "0.9.0", "2.3.0", "transformer_engine.pytorch.make", site, "config.wide", FindingKind.CHANGED,
        "without 'fast': its default is 2, not 1", "(size,fast=2)",
    )  # fmt: skip
    assert changed(mcore(source), later, tested) == [left_out]
    missing = replace(left_out, kind=FindingKind.DEFINITE, exception="TypeError", signature="(size,fast)")
    message = "make() missing 1 required positional argument: 'fast'"
    assert find(mcore(source), te("def make(size, fast): ...", "2.3.0")) == [replace(missing, message=message)]

    (finding,) = find(project("import megatron.core.MAX\n"), core({}))
    assert (finding.callee, finding.packages) == ("megatron.core.MAX", ("fork", "megatron-core"))


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("Maker.run", "def run(self, size=2): ..."),
        ("Maker().run(1)", "def run(self, size=2): ..."),
        ("class Own(Maker):\n    def run(self):\n        super().run(1)", "def run(self, size=2): ..."),
        ("Maker().run()", "def stop(self): ..."),
        ("Maker().run()", "try:\n        def run(self, size=2): ...\n    except:\n        def run(self, size=3): ..."),
    ],
)
def test_default_of_another_use_is_no_change(code: str, new: str) -> None:
    calls = mcore(f"from transformer_engine.pytorch import Maker\n{code}\n")
    tested, later = te("class Maker:\n    def run(self, size=1): ..."), te(f"class Maker:\n    {new}", "2.3.0")
    assert changed(calls, later, tested) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("te.pytorch.extra = len\nte.pytorch.extra(1)\n", []),
        ("if hasattr(te.pytorch, 'extra'):\n    te.pytorch.extra = len\nte.pytorch.extra(1)\n", [4]),
        (
            "te.pytorch.extra = len\ndef f():\n    te.pytorch.extra(1)\n    te.pytorch.more = len\n"
            "def g():\n    te.pytorch.more(1)\n",
            [],
        ),
        ("te.pytorch.Maker().run(1)\n", []),
        ("te.pytorch.Maker().run(1, 2)\n", [2]),
        # Each function fails by itself; of two on one line, each may come first.
        ("def f():\n    te.pytorch.pad(a=1)\ndef g():\n    te.pytorch.pad(b=1)\n", [3, 5]),
        ("te.pytorch.pad(a=1); te.pytorch.pad(b=1)\n", [2, 2]),
        ("try:\n    te.pytorch.gone\nexcept AttributeError:\n    pass\nte.pytorch.pad(a=1)\n", [3, 6]),
    ],
)
def test_breaks_of_a_file_by_line(source: str, lines: list[int]) -> None:
    offered = "class Maker:\n    def run(self, size): ...\ndef pad(): ..."
    assert [
        finding.call_site.line for finding in findings(f"import transformer_engine as te\n{source}", offered)
    ] == lines


def test_code_behind_a_caught_import_is_off() -> None:
    source = """
        try:
            import transformer_engine as te
            from transformer_engine.pytorch import gone
            def run():
                te.pytorch.pad(align=1)
        except ImportError:
            pass
    """
    assert [finding.kind.value for finding in find(mcore(source), te("def pad(): ..."))] == ["silently-off"]


@pytest.mark.parametrize(
    ("use", "other", "masked"),
    [
        ("from megatron.core.a import b", {"a.py": "b = 1"}, ""),
        ("from megatron.core.a import b", {"a.py": "c = 1"}, "no recorded release has it"),
        ("from megatron.core import a\na.K.b", {"a.py": "class K:\n    b = 1"}, ""),
        ("from megatron.core import a\na.K.b", {"a.py": "class K: ..."}, "no recorded release has it"),
        ("from megatron.core import a\na.L.b", {"a.py": "class L: ..."}, ""),
        ("import megatron.core.b.c", {"a.py": "", "b/__init__.py": ""}, ""),
        ("import megatron.core.b.c", {"a.py": ""}, "no recorded release has it"),
    ],
)
def test_part_that_no_release_has_is_named(use: str, other: dict[str, str], masked: str) -> None:
    """The part that is missing here decides: another release may lack only what follows it."""
    here = core({"a.py": "class K: ..."}, "0.15.0")
    (finding,) = find(project(f"{use}\n"), here, history=Past(here, core(other, "0.16.0")))
    assert finding.masked == masked


def test_method_of_a_parameter_hides_nothing() -> None:
    """Its class may be another one, with a method of its own."""
    source = """
        import transformer_engine as te
        from transformer_engine.pytorch import Maker
        def run(maker: Maker):
            maker.run(1)
            te.pytorch.pad(align=1)
        class Own(Maker):
            def gone(self, size): ...
    """
    kept = "class Maker:\n    def run(self): ...\n"
    here, other = te(f"{kept}def pad(): ...", "2.1.0"), te(f"{kept}    def gone(self, size): ...\n", "2.0.0")
    found = find(mcore(source), here, history=Past(here, other))
    assert [(finding.call_site.line, finding.kind.value, finding.masked) for finding in found] == [
        (5, "possible", ""),
        (6, "definite", ""),
        (8, "silently-off", ""),
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("maker.gone(1)\nCALL", ["possible", "definite"]),
        ("try:\n    maker.gone(1)\n    CALL\nexcept AttributeError:\n    pass", ["possible", "definite"]),
        ("try:\n    maker.gone(1)\nexcept AttributeError:\n    return\nCALL", ["possible", "definite"]),
        ("try:\n    maker.gone(1)\nexcept AttributeError:\n    raise ValueError()\nCALL", ["definite"]),
    ],
)
def test_missing_method_of_a_parameter_hides_nothing(lines: str, expected: list[str]) -> None:
    """A subclass may have it: the code below runs."""
    body = lines.replace("CALL", "te.pytorch.pad(align=1)").replace("\n", "\n    ")
    head = "import transformer_engine as te\nfrom transformer_engine.pytorch import Maker\ndef run(maker: Maker):\n    "
    other = te("class Maker:\n    def gone(self, size): ...\ndef pad(): ...", "2.0.0")
    here = te("class Maker: ...\ndef pad(): ...", "2.1.0")
    assert [finding.kind.value for finding in find(mcore(head + body), here, history=Past(here, other))] == expected


def test_guard_of_a_missing_name_decides_the_rest() -> None:
    source = """
        import inspect
        import transformer_engine as te
        def first(config):
            if config.fast:
                from transformer_engine.pytorch import gone
            te.pytorch.pad(align=1)
        def second():
            if len(inspect.signature(te.pytorch.pad).parameters) > 3:
                from transformer_engine.pytorch import missing
                te.pytorch.pad(align=1)
    """
    found = find(mcore(source), te("def pad(): ..."))
    assert [(f.call_site.line, f.kind.value, f.guard) for f in found[:2]] == [
        (6, "definite", "config.fast"),
        (7, "definite", "not config.fast"),
    ]
    assert [(f.call_site.line, f.kind.value) for f in found[2:]] == [(10, "possible")]


def test_plain_import_is_its_own_end() -> None:
    """Another file catches the same failure, and a third one raises because of that."""
    files = {
        "extension.py": EXTENSION.replace("permute", "FusedRoPE"),
        "rope.py": ROPE,
        "config.py": CONFIG,
        "plain.py": "from transformer_engine.pytorch import FusedRoPE\n",
    }
    assert ("definite", "ImportError", "", "") in ends(files)


def test_guard_names_what_this_release_has() -> None:
    """That another package is installed goes without saying."""
    source = """
        import transformer_engine as te
        try:
            import apex
        except ImportError:
            apex = None
        def run(config):
            if hasattr(te.pytorch, "get") and apex is not None:
                te.pytorch.put(1)
    """
    (finding,) = findings(source, "def get(): ...\ndef put(): ...")
    assert finding.guard == "has transformer_engine.pytorch.get"
    fork = "import megatron.core\nfrom packaging.version import Version\nfrom megatron.core import a\n"
    fork += "if Version(megatron.core.__version__) >= Version('0.1'):\n    a.f(1)\n"
    (finding,) = find(project(fork), core({"a.py": "def f(): ..."}))
    assert finding.guard == "megatron-core >= 0.1"
