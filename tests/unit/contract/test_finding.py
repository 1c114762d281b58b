"""The kinds of findings and their contents."""

import pytest

from matrix.contract.finding import FindingKind, changed, find
from tests.unit.contract.sources import broken, findings, mcore, te

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


def test_finding_has_all_json_keys() -> None:
    [found] = findings(BLOCK, OFFLOAD.format(""), "1.9.0+e79d915")
    assert found.to_json() == {
        "mcore": "0.9.0",
        "te": "1.9.0+e79d915",
        "callee": "transformer_engine.pytorch.get_cpu_offload_context",
        "call_site": "megatron/core/adapter.py:6 get_cpu_offload_context",
        "guard": "TE > 1.9.0",
        "kind": "definite",
        "message": "get_cpu_offload_context() takes from 0 to 4 positional arguments but 5 were given",
        "signature": "(enabled=False,num_layers=1,offload_activations=True,offload_weights=True)",
        "exception": "TypeError",
    }


def test_four_arguments_to_five_parameters_are_misbound() -> None:
    found = findings(BLOCK, te(OFFLOAD.format("model_layers=1, ")), "1.9.0")
    shifted = [
        ("activation_offloading", "model_layers", "offload_activations"),
        ("weight_offloading", "offload_activations", "offload_weights"),
    ]
    assert [(f.kind, f.message) for f in found] == [
        (
            FindingKind.MISBOUND,
            f"get_cpu_offload_context(): positional argument '{a}' lands on '{on}', and means '{meant}'",
        )
        for a, on, meant in shifted
    ]


def test_only_the_error_of_python_is_found() -> None:
    """Of an unexpected keyword and missing arguments Python reports the first only."""
    source = """
        import transformer_engine as te
        def setup():
            te.pytorch.initialize_ub(shape=1, tp_size=2, more=3)
    """
    offered = "def initialize_ub(shape, tp_group, use_fp8=False): ..."
    assert broken(source, offered) == [("definite", "initialize_ub() got an unexpected keyword argument 'tp_size'")]


def test_failure_in_one_of_two_definitions_is_possible() -> None:
    offered = "import torch\nif torch.new:\n    def get(a): ...\nelse:\n    def get(a, b): ..."
    source = "import transformer_engine as te\ndef run():\n    te.pytorch.get(1, 2)\n"
    assert broken(source, offered) == [("possible", "get() takes 1 positional argument but 2 were given")]


def test_missing_attribute_and_missing_module_are_findings() -> None:
    source = """
        import transformer_engine as te
        class Norm(te.pytorch.RMSNorm): ...
        def run():
            from transformer_engine.pytorch.ops import gone
    """
    assert broken(source, "") == [("definite", "module 'transformer_engine.pytorch' has no attribute 'RMSNorm'")]
    offered = te({"pytorch/__init__.py": "class RMSNorm: ..."})
    assert broken(source, offered) == [("definite", "No module named 'transformer_engine.pytorch.ops'")]


def test_partial_reports_wrong_keyword_and_nothing_missing() -> None:
    source = """
        import functools
        import transformer_engine as te
        make = functools.partial(te.pytorch.get, wrong=1)
    """
    offered = "def get(a, b): ..."
    assert broken(source, offered) == [("definite", "get() got an unexpected keyword argument 'wrong'")]


def test_autograd_apply_is_bound_to_forward() -> None:
    offered = te({"pytorch/__init__.py": """
        import torch
        class Rope(torch.autograd.Function):
            @staticmethod
            def forward(ctx, t, freqs, tensor_format="sbhd"): ...
    """})  # fmt: skip
    source = """
        import transformer_engine as te
        def fused(t, freqs):
            te.pytorch.Rope.apply(t, freqs, "thd", 1, 2)
        def named(t, freqs):
            te.pytorch.Rope.apply(t, freqs=freqs)
        def fine(t, freqs):
            te.pytorch.Rope.apply(t, freqs)
    """
    messages = ["takes from 3 to 4 positional arguments but 6 were given", "got an unexpected keyword argument 'freqs'"]
    assert broken(source, offered) == [("definite", f"Rope.forward() {message}") for message in messages]


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
    ],
)
def test_argument_left_out_gets_a_changed_default(call: str, old: str, new: str, message: str | None) -> None:
    """What stands for "as this release likes", and a call written for the new default, are no change."""
    calls = mcore(
        f"""
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
