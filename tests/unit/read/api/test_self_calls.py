"""What a provider does with its own API: what it refuses, returns, calls and keeps in its objects."""

from __future__ import annotations

from textwrap import dedent

import pytest

from matrix.read.api import recording
from matrix.read.api.api import Surface
from matrix.read.api.comparison import find
from matrix.read.api.finding import Finding
from matrix.read.api.pairs import RecordedReleases
from matrix.read.api.provider import MEGATRON_CORE, TRANSFORMER_ENGINE, Calls
from tests.unit.read.api.sources import broken, core, mcore, project, te

IMPORT = "import transformer_engine.pytorch as te\n"


def released(calls: Calls, version: str) -> list[Finding]:
    """Return the findings of a consumer with a recorded release of its provider."""
    provider = TRANSFORMER_ENGINE if calls.provider == TRANSFORMER_ENGINE.package else MEGATRON_CORE
    return find(calls, recording.recorded_surface(provider, version), history=RecordedReleases(provider))


def kinds(found: list[Finding]) -> list[tuple[str, str]]:
    return [(one.kind.value, one.message) for one in found]


class TestRefusals:
    @pytest.mark.parametrize(
        ("callee", "call", "expected"),
        [
            ("def f(*a):\n    raise RuntimeError('gone')", "te.f(1)", "f() raises RuntimeError"),
            ("def f(a, g=None):\n    assert g is not None", "te.f(1)", "f() raises AssertionError without 'g'"),
            ("def f(a, group=None):\n    if group is None:\n        raise ValueError('x')", "te.f(1)",
             "f() raises ValueError without 'group'"),
            ("def f(a, b=None, c=None):\n    if not (b and c):\n        raise ValueError('x')", "te.f(1, c=2)",
             "f() raises ValueError without 'b'"),
            ("class C:\n    def __init__(self, a=None):\n        assert a, 'x'", "te.C()",
             "C.__init__() raises AssertionError without 'a'"),
        ],
    )  # fmt: skip
    def test_refused_call_is_definite(self, callee: str, call: str, expected: str) -> None:
        assert broken(f"{IMPORT}def run():\n    {call}\n", callee) == [("definite", expected)]

    @pytest.mark.parametrize(
        ("callee", "call"),
        [
            ("def f(a, group=None):\n    assert group is not None", "te.f(1, 2)"),
            ("def f(a, group=None):\n    assert group is not None", "te.f(1, group=x)"),
            ("def f(a, group=None):\n    assert group is not None", "te.f(1, **x)"),
            ("def f(a, group=1):\n    assert group is not None", "te.f(1)"),
            ("def f(a, group=None):\n    group = group or 1\n    assert group is not None", "te.f(1)"),
            ("def f(a, group=None):\n    if a:\n        return 1\n    assert group is not None", "te.f(1)"),
            ("def f(a, group=None):\n    assert group is not None or a", "te.f(1)"),
            ("def f(a):\n    if a:\n        return 1\n    raise ValueError", "te.f(1)"),
            ("def f(a):\n    yield\n    raise ValueError", "te.f(1)"),
            ("def f(a):\n    raise NotImplementedError", "te.f(1)"),
        ],
    )
    def test_what_may_pass_is_no_finding(self, callee: str, call: str) -> None:
        assert broken(f"{IMPORT}def run(x):\n    {call}\n", callee) == []

    def test_keyword_of_a_branch_is_required_elsewhere(self) -> None:
        """The keyword is passed only where the run's configuration asks for it: the guard names the other case."""
        calls = mcore(f"{IMPORT}def run(config):\n    k = {{}}\n    if config.x:\n        k['g'] = 1\n    te.f(**k)\n")
        found = find(calls, te("def f(g=None):\n    assert g is not None"), "1.9.0")

        assert [(one.kind.value, one.guard) for one in found] == [("definite", "not config.x")]

    @pytest.mark.parametrize("error", ["ValueError", "Exception", "(KeyError, ValueError)"])
    def test_caught_refusal_is_silently_off(self, error: str) -> None:
        calls = f"{IMPORT}try:\n    y = te.f(1)\nexcept {error}:\n    y = None\n"

        assert [kind for kind, _ in broken(calls, "def f(a):\n    raise ValueError('gone')")] == ["silently-off"]

    @pytest.mark.parametrize(("caught", "kind"), [("Exception", "silently-off"), ("ValueError", "definite")])
    def test_handler_of_all_catches_any_exception(self, caught: str, kind: str) -> None:
        text = f"{IMPORT}try:\n    te.f(1)\nexcept {caught}:\n    x = None\n"

        assert [one for one, _ in broken(text, "def f(a):\n    raise KeyError('gone')\n")] == [kind]

    def test_recorded_release_refuses_a_call(self) -> None:
        """core 0.14 took `get_moe_module_spec_for_backend` with an assert on num_experts, whose default is None."""
        text = "from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec_for_backend as spec\n"
        callee = "get_moe_module_spec_for_backend() raises AssertionError without 'num_experts'"

        assert kinds(released(project(f"{text}spec(backend)\n"), "0.14.0")) == [("definite", callee)]
        assert kinds(released(project(f"{text}spec(backend, num_experts=8)\n"), "0.14.0")) == []


class TestReturnedTuples:
    def test_changed_size_from_te_is_found(self) -> None:
        calls = f"{IMPORT}def run():\n    a, b, c = te.f()\n"

        assert broken(calls, "def f():\n    return 1, 2, 3") == []
        assert broken(calls, "def f():\n    return 1, 2") == [
            ("definite", "not enough values to unpack (expected 3, got 2)")
        ]

    def test_recorded_te_returns_one_more(self) -> None:
        """permute_with_mask_map returned two values up to TE 2.1, and three since."""
        text = "from transformer_engine.pytorch.triton.permutation import permute_with_mask_map as permute\n"
        calls = project(f"{text}def run(x):\n    out, map = permute(*x)\n", TRANSFORMER_ENGINE)

        assert kinds(released(calls, "2.1.0")) == []
        assert kinds(released(calls, "2.10.0")) == [("definite", "too many values to unpack (expected 2)")]


class TestObjects:
    NEW = "import torch\nclass Float8Tensor(torch.Tensor):\n    def __new__(cls, x): ...\n"
    OLD = f"{NEW}    _meta: int\n"
    MESSAGE = "'Float8Tensor' object has no attribute '_meta', unless its class is another"

    def found(self, calls: str, now: str) -> list[tuple[str, str]]:
        class Past(RecordedReleases):
            def _surfaces(self):  # type: ignore[no-untyped-def]
                return [te(TestObjects.OLD), te(TestObjects.NEW)]

        return kinds(find(mcore(IMPORT + calls), te(now), "1.9.0", history=Past(TRANSFORMER_ENGINE)))

    @pytest.mark.parametrize(
        "calls",
        [
            "def run(x: te.Float8Tensor):\n    return x._meta\n",
            "def run(x):\n    if isinstance(x, te.Float8Tensor):\n        return x._meta['a']\n",
            "def run(x):\n    if HAVE and isinstance(x, te.Float8Tensor):\n        return x._meta\n",
            "def is_fp8(t):\n    return HAVE and isinstance(t, te.Float8Tensor)\n"
            "def run(x):\n    if is_fp8(x):\n        return x._meta\n",
        ],
    )
    def test_gone_private_attribute_is_possible(self, calls: str) -> None:
        assert self.found(calls, self.NEW) == [("possible", self.MESSAGE)]
        assert self.found(calls, self.OLD) == []

    @pytest.mark.parametrize(
        "calls",
        [
            "def run(x):\n    if isinstance(x, te.Float8Tensor):\n        pass\n    return x._meta\n",
            "def run(x):\n    if not isinstance(x, te.Float8Tensor):\n        return x._meta\n",
            "def run(x):\n    if isinstance(x, te.Float8Tensor):\n        return x._version\n",
            "def run(x):\n    if isinstance(x, te.Float8Tensor):\n        x._meta = 1\n",
        ],
    )
    def test_attribute_of_another_object_is_none(self, calls: str) -> None:
        assert self.found(calls, self.NEW) == []

    def test_recorded_tensor_lost_its_meta(self) -> None:
        """The distributed optimizer of core 0.9 and 0.10 reads Float8Tensor._fp8_meta, which TE 2.0 took away."""
        found = released(recording.load_calls("0.10.0"), "2.0.0")

        lost = {one.callee.rpartition(".")[2] for one in found if one.kind.value == "possible"}
        assert lost == {"_fp8_meta", "_fp8_meta_index"}
        assert not [one for one in released(recording.load_calls("0.10.0"), "1.13.0") if one.kind.value == "possible"]


class TestReplacing:
    LAYER = """
    class Linear:
        def run(self, x):
            return {call}
        def forward(self, x, first=None): ...
        def _tail(self, x, y): ...
    class Block:
        def __init__(self):
            self.qkv = Linear()
        def forward(self, x):
            self.qkv(x, first=1, last=2)
            Linear.forward(x, 1)
    """
    OWN = f"{IMPORT}class Mine(te.Linear):\n    def forward(self, x): ...\n"

    @pytest.mark.parametrize(
        ("call", "expected"),
        [
            ("self.forward(x, first=1)", ["override"]),
            ("self.forward(x)", []),
            ("self._tail(x, 1)", []),
        ],
    )
    def test_override_takes_the_calls_of_te(self, call: str, expected: list[str]) -> None:
        """Block constructs its own Linear, and names the class: neither reaches an override."""
        assert [kind for kind, _ in broken(self.OWN, self.LAYER.format(call=call))] == expected

    @pytest.mark.parametrize(
        ("bases", "call", "expected"),
        [
            ("", "self.forward(x, first=1)", []),
            ("", "softmax_cuda.forward(x, 1)", []),
            ("", "helper.forward(x, 1)", []),
            ("", "x.forward(x, 1)", ["override"]),
            ("Linear", "self.forward(x, first=1)", []),
        ],
    )
    def test_call_of_another_class_is_none(self, bases: str, call: str, expected: list[str]) -> None:
        """A method of the same name, a module from outside and a derived class are no callers; an object may be one."""
        others = f"import softmax_cuda\nfrom ops import helper\n{dedent(self.LAYER.format(call='x'))}"
        other = f"class Other({bases}):\n    def run(self, x):\n        {call}\n    def forward(self, x, first): ...\n"

        assert [kind for kind, _ in broken(self.OWN, others + other)] == expected

    def test_call_in_a_base_class_is_found(self) -> None:
        base = "class Base:\n    def run(self, x):\n        self.forward(x, first=1)\n"
        layer = f"{base}class Linear(Base):\n    def forward(self, x, first=None): ...\n"

        assert [kind for kind, _ in broken(self.OWN, layer)] == ["override"]

    def test_fullest_call_of_a_class_is_named(self) -> None:
        """Each file constructs what a spec names; only one passes all that a layer takes."""
        files = {
            "layer.py": "class Layer:\n    def __init__(self, submodules, config, number=1, group=None): ...\n",
            "experts.py": "def build(s): build_module(s.experts, config=1, group=2)\n",
            "stack.py": "def build(s): build_module(s.layer, config=1, number=2, group=3)\n",
        }
        mine = "from megatron.core.layer import Layer\nclass Mine(Layer):\n    def __init__(self, spec, config): ...\n"

        found = find(project(mine), core(files))
        assert [one.message.partition("called in ")[2] for one in found] == ["megatron.core.stack"]

    def test_recorded_te_calls_forward_with_more(self) -> None:
        found = [one for one in released(recording.load_calls("0.19.2"), "2.20.2") if one.kind.value == "override"]

        assert ["'qkv_format'" in one.message for one in found] == [True]
        assert not [one for one in released(recording.load_calls("0.19.2"), "2.18.0") if one.kind.value == "override"]

    def test_recorded_patches_take_the_calls(self) -> None:
        """The batch-invariant kernels replace functions of TE; the loop over modules is followed."""
        calls = recording.load_calls("0.19.2")
        patched = {use.path.partition(":")[2] for use in calls.uses if use.kind == "patch" and use.signature}

        assert {"general_gemm", "apply_normalization", "RMSNorm.forward"} <= patched

    def test_patch_with_fewer_parameters_is_found(self) -> None:
        text = "import transformer_engine.pytorch.module._common as c\ndef mine(x, out, weight): ...\n"
        calls = project(f"{text}c.apply_normalization = mine\n", TRANSFORMER_ENGINE)
        surface = recording.load_surface("2.18.0")

        assert [kind for kind, _ in kinds(find(calls, surface))] == ["override"]

    def test_guarded_patch_adds_nothing(self) -> None:
        text = "import transformer_engine.pytorch as te\ndef g(): ...\nif hasattr(te, 'f'):\n    te.f = g\nte.f()\n"

        assert broken(text, "") == [("definite", "module 'transformer_engine.pytorch' has no attribute 'f'")]
        assert broken(text.replace("hasattr", "not hasattr"), "") == []


def test_refusal_survives_the_record(tmp_path) -> None:  # type: ignore[no-untyped-def]
    surface: Surface = core({"a.py": "def f(g=None):\n    assert g\n    return 1, 2\n"})
    path = tmp_path / "x.json.gz"
    recording.write(te("def f(g=None):\n    assert g\n    return 1, 2\n"), path)

    read = recording.read_surface(path)
    assert read.refused == {"transformer_engine.pytorch:f": [["AssertionError", "g"]]}
    assert surface.returned == {"megatron.core.a:f": 2}


def test_refused_call_behind_a_break_is_masked() -> None:
    surface = core({"a.py": "def f(g=None):\n    assert g\n", "b.py": ""})
    calls = project("from megatron.core.a import f\nimport megatron.core.b as b\ndef train():\n    b.gone()\n    f()\n")

    assert [(one.message, bool(one.masked)) for one in find(calls, surface)] == [
        ("module 'megatron.core.b' has no attribute 'gone'", False),
        ("f() raises AssertionError without 'g'", True),
    ]
