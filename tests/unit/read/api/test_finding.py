"""The kinds of findings and their contents."""

from matrix.read.api.finding import FindingKind
from tests.unit.read.api.sources import broken, findings, te

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
