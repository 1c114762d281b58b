"""Any project against megatron-core or torch: calls, imports, overrides, patches, versions."""

from __future__ import annotations

import pytest

from matrix.read.api.comparison import find
from matrix.read.api.finding import Finding
from matrix.read.api.provider import MEGATRON_CORE, TORCH
from tests.unit.read.api.sources import Past, breaks, core, project, torch

LAYER = """
class TransformerLayer:
    def __init__(self, config, submodules, layer_number=1): ...
    def forward(self, hidden_states, attention_mask=None): ...
    def _forward_mlp(self, hidden_states, residual): ...
    def run(self, x):
        return self._forward_mlp(x, x)
"""
PARALLEL = """
from dataclasses import dataclass
@dataclass
class ParallelConfig:
    tensor_model_parallel_size: int = 1
    def __post_init__(self): ...
"""


def test_missing_name_of_megatron_core_is_found() -> None:
    fork = project("from megatron.core.models import GPTModel, LLaMA\n")

    assert breaks(fork, core({"models.py": "class GPTModel: ...\n"})) == [
        ("definite", "cannot import name 'LLaMA' from 'megatron.core.models'")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import megatron.core\nmegatron.core.mpu.initialize(1, 2)\n",
        "from megatron import core\ncore.mpu.initialize(1, 2)\n",
        "from megatron.core import mpu\nmpu.initialize(1, 2)\n",
        "import megatron.core.mpu as m\nm.initialize(1, 2)\n",
    ],
)
def test_every_import_form_is_followed(text: str) -> None:
    messages = [("definite", "initialize() takes 1 positional argument but 2 were given")]

    assert breaks(project(text), core({"mpu.py": "def initialize(size): ...\n"})) == messages


@pytest.mark.parametrize(
    "guard",
    [
        "from packaging import version\nimport megatron.core\n"
        "if version.parse(megatron.core.__version__) >= version.parse('0.17.0rc0'):\n",
        "from megatron.core import __version__ as v\nfrom packaging.version import Version\n"
        "if Version(v) >= Version('0.17'):\n",
        "from importlib.metadata import version\nfrom packaging.version import parse\n"
        "if parse(version('megatron-core')) > parse('0.16.0'):\n",
    ],
)
def test_version_guards_of_a_framework_are_read(guard: str) -> None:
    fork = project(f"{guard}    from megatron.core.new import f\n")

    assert breaks(fork, core({}, "0.16.0")) == []
    assert breaks(fork, core({}, "0.17.0")) == [("definite", "No module named 'megatron.core.new'")]


def test_vendored_modules_of_a_project_win() -> None:
    fork = project({"megatron/training/loop.py": "", "run.py": "from megatron.training.loop import train\n"})

    assert breaks(fork, core({})) == []


class TestOverrides:
    FORK = """
    from megatron.core.layer import TransformerLayer
    class Mine(TransformerLayer):
        def _forward_mlp(self, hidden_states, residual): ...
    """

    def test_new_argument_of_the_caller_is_found(self) -> None:
        later = LAYER.replace("(self, hidden_states, residual)", "(self, hidden_states, residual, padding_mask=None)")
        later = later.replace("(x, x)", "(x, x, padding_mask=None)")

        assert breaks(project(self.FORK), core({"layer.py": later}), core({"layer.py": LAYER})) == [
            (
                "override",
                "TransformerLayer._forward_mlp() as replaced got an unexpected keyword argument 'padding_mask', "
                "called in megatron.core.layer",
            )
        ]

    def test_override_that_fits_is_no_finding(self) -> None:
        assert breaks(project(self.FORK), core({"layer.py": LAYER})) == []

    def test_override_that_never_fits_is_no_finding(self) -> None:
        """It fits no release: it was not written for the provider's own calls."""
        fork = self.FORK.replace("hidden_states, residual", "pixels")

        assert breaks(project(fork), core({"layer.py": LAYER})) == []

    def test_gone_method_is_silently_off(self) -> None:
        gone = LAYER.replace("_forward_mlp", "_mlp")

        assert breaks(project(self.FORK), core({"layer.py": gone}), core({"layer.py": LAYER})) == [
            ("silently-off", "'TransformerLayer' has no '_forward_mlp': the override is never called")
        ]

    def test_builder_constructs_the_class_of_a_spec(self) -> None:
        """build_module passes a keyword that the subclass does not take."""
        block = "def build(spec, config):\n    build_module(spec, config=config, layer_number=1{})\n"
        later = LAYER.replace("layer_number=1)", "layer_number=1, pg_collection=None)")
        surface = core({"layer.py": later, "block.py": block.format(", pg_collection=None")})
        fork = project(
            "from megatron.core.layer import TransformerLayer\nclass Mine(TransformerLayer):\n"
            "    def __init__(self, config, submodules, layer_number=1): ...\n"
        )

        assert [
            message for _, message in breaks(fork, surface, core({"layer.py": LAYER, "b.py": block.format("")}))
        ] == [
            "TransformerLayer.__init__() as replaced got an unexpected keyword argument 'pg_collection', "
            "called in megatron.core.block"
        ]

    def test_call_of_another_thing_is_ignored(self) -> None:
        """A call that the overridden method would refuse itself is one of something with the same name."""
        other = LAYER + "def elsewhere(optimizer):\n    optimizer._forward_mlp(1, 2, 3, 4)\n"

        assert breaks(project(self.FORK), core({"layer.py": other})) == []


class TestPatches:
    def test_patch_is_held_against_the_calls(self) -> None:
        fork = project("from megatron.core import utils\ndef mine(a): ...\nutils.reduce = mine\n")
        again = project("from megatron.core import utils\ndef mine(a): ...\nsetattr(utils, 'reduce', mine)\n")
        before = core({"utils.py": "def reduce(a): ...\ndef f():\n    reduce(1)\n"})
        after = core({"utils.py": "def reduce(a, group=None): ...\ndef f():\n    reduce(1, group=2)\n"})

        assert breaks(fork, before) == []
        assert [kind for kind, _ in breaks(fork, after, before)] == ["override"]
        assert breaks(again, after, before) == breaks(fork, after, before)

    def test_patch_of_a_method_binds_self(self) -> None:
        fork = project(
            "from megatron.core.layer import TransformerLayer\n"
            "def forward_mlp(self, hidden_states, residual): ...\n"
            "TransformerLayer._forward_mlp = forward_mlp\n"
        )

        assert breaks(fork, core({"layer.py": LAYER})) == []

    def test_patch_of_a_gone_name_replaces_nothing(self) -> None:
        fork = project("from megatron.core import utils\nutils.reduce = None\nutils.mine = 1\n")
        past = core({"utils.py": "def reduce(a): ...\n"})

        assert breaks(fork, core({"utils.py": ""}), past) == [
            ("silently-off", "'megatron.core.utils' has no 'reduce': the patch replaces nothing")
        ]


def test_json_names_the_packages() -> None:
    found: list[Finding] = find(project("from megatron.core import gone\n"), core({}))
    torch_found = find(project("import torch.distributed.tensor\n", TORCH), torch({}))

    assert {"consumer": "fork", "mcore": "0.16.0"}.items() <= found[0].to_json().items()
    assert {"consumer": "fork", "torch": "2.6.0"}.items() <= torch_found[0].to_json().items()
    assert MEGATRON_CORE.key == "mcore"


class TestReturnedTuples:
    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            ("a, b", []),
            ("a, b, c", [("definite", "too many values to unpack (expected 2)")]),
            ("(a,)", [("definite", "not enough values to unpack (expected 2, got 1)")]),
            ("a", []),
        ],
    )
    def test_changed_size_of_a_returned_tuple(self, returned: str, message: list[tuple[str, str]]) -> None:
        fork = project("from megatron.core.schedule import step\nloss, norm = step()\n")

        assert breaks(fork, core({"schedule.py": f"def step():\n    return {returned}\n"})) == message

    def test_returns_that_differ_are_unknown(self) -> None:
        fork = project("from megatron.core.schedule import step\nloss, norm = step(1)\n")
        text = "def step(x):\n    if x:\n        return 1, 2, 3\n    return 1, 2\n"

        assert breaks(fork, core({"schedule.py": text})) == []


class TestTypes:
    PLANNER = (
        "class SavePlanner:\n    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False): ...\n"
    )

    @pytest.mark.parametrize("annotation", ["SavePlanner", "Optional[SavePlanner]", "SavePlanner | None"])
    def test_annotated_parameter_has_the_methods_of_its_class(self, annotation: str) -> None:
        fork = project(
            "from typing import Optional\nfrom torch.distributed.checkpoint import SavePlanner\n"
            f"def save(planner: {annotation}, is_coordinator):\n    planner.set_up_planner({{}}, is_coordinator)\n",
            TORCH,
        )

        older = torch({"checkpoint/__init__.py": self.PLANNER.replace("storage_meta=None, ", "")})
        message = (
            "SavePlanner.set_up_planner(): positional argument 'is_coordinator' lands on 'storage_meta', "
            "and means 'is_coordinator'"
        )
        surface = torch({"checkpoint/__init__.py": self.PLANNER})
        assert breaks(fork, surface, older) == [("misbound", message)]
        assert breaks(fork, surface) == []  # no release has the parameter there

    def test_constructed_object_has_the_methods_of_its_class(self) -> None:
        fork = project(
            "from torch.distributed.checkpoint import SavePlanner\n"
            "planner = SavePlanner()\nplanner.set_up_planner(1, 2, 3, 4)\n",
            TORCH,
        )

        assert [kind for kind, _ in breaks(fork, torch({"checkpoint/__init__.py": self.PLANNER}))] == ["possible"]

    def test_method_that_a_subclass_adds_is_unknown(self) -> None:
        fork = project(
            "from torch.distributed.checkpoint import SavePlanner as P\ndef save(planner: P):\n    planner.more()\n",
            TORCH,
        )
        gone = torch({"checkpoint/__init__.py": self.PLANNER})
        past = torch({"checkpoint/__init__.py": f"{self.PLANNER}    def more(self): ...\n"})

        assert breaks(fork, gone) == []
        assert [kind for kind, _ in breaks(fork, gone, past)] == ["possible"]

    def test_dataclass_adds_its_fields_to_the_constructor(self) -> None:
        fork = project(
            "from dataclasses import dataclass\nfrom megatron.core.parallel import ParallelConfig\n@dataclass\n"
            "class Mine(ParallelConfig):\n    extra: int = 0\n"
            "Mine(extra=1, tensor_model_parallel_size=2)\nMine(extra=1, gone=2)\n"
        )

        assert breaks(fork, core({"parallel.py": PARALLEL})) == [
            ("definite", "ParallelConfig.__init__() got an unexpected keyword argument 'gone'")
        ]


def test_super_of_another_class_is_unknown() -> None:
    """super(TransformerLayer, self) calls the constructor behind TransformerLayer."""
    fork = project(
        "from megatron.core.layer import TransformerLayer\nclass Mine(TransformerLayer):\n"
        "    def __init__(self):\n        super(TransformerLayer, self).__init__(anything=1)\n"
        "class Own(TransformerLayer):\n"
        "    def __init__(self):\n        super(Own, self).__init__(anything=1)\n"
    )

    assert [one.call_site.function for one in find(fork, core({"layer.py": LAYER}))] == ["Own.__init__"]


def test_names_that_every_module_and_class_has() -> None:
    fork = project(
        "from megatron.core import layer as l\nl.__file__\nl.TransformerLayer.__name__\nl.TransformerLayer.__x__\n"
    )

    assert [message for _, message in breaks(fork, core({"layer.py": LAYER}))] == [
        "type object 'TransformerLayer' has no attribute '__x__'"
    ]


def test_attribute_of_an_own_class_is_its_own() -> None:
    fork = project(
        "from megatron.core.layer import TransformerLayer\nclass Mine(TransformerLayer):\n    cache: dict = {}\n"
        "    def run(self):\n        Mine.cache.clear()\n        Mine.gone.clear()\n"
    )

    assert breaks(fork, core({"layer.py": LAYER})) == [
        ("definite", "type object 'TransformerLayer' has no attribute 'gone'")
    ]


def test_private_name_set_by_a_function_is_known() -> None:
    """`with replaced(module, "old", new, "_kept"):` keeps the original under a name of its own."""
    fork = project(
        "from megatron.core import utils\nfrom tools import replaced\n"
        "def run():\n    with replaced(utils, 'reduce', print, '_kept'):\n        utils._kept.forward(1)\n        {}\n"
    )
    surface = core({"utils.py": "class reduce: ...\n"})

    assert breaks(fork, surface) == []
    other = project("from megatron.core import utils\nutils._kept.forward(1)\n")
    assert breaks(other, surface) == [("definite", "module 'megatron.core.utils' has no attribute '_kept'")]


def test_name_of_no_release_is_folded() -> None:
    """A private build or a branch has it: no release mends the call."""
    fork = project("from megatron.core import utils\ndef a(): utils.old(1)\ndef b(): utils.mine(1)\n")
    before, after = core({"utils.py": "def old(a): ...\n"}), core({"utils.py": "x = 1\n"})

    masks = {finding.callee: bool(finding.masked) for finding in find(fork, after, history=Past(before, after))}
    assert masks == {"megatron.core.utils.old": False, "megatron.core.utils.mine": True}


def test_modules_that_code_adds_are_unknown() -> None:
    code = "import sys\nfor name in ['a']:\n    sys.modules[f'megatron.core.old.{name}'] = __import__(name)\n"
    fork = project("from megatron.core.old.a import f\n")

    assert breaks(fork, core({"old/__init__.py": code})) == []
    assert breaks(fork, core({"old/__init__.py": ""})) == [("definite", "No module named 'megatron.core.old.a'")]


def test_call_without_arguments_is_of_any_object() -> None:
    """`x.forward()` fits every class with *args; it is no call of this one."""
    layer = "class Layer:\n    def forward(self, *args, **kwargs): ...\n"
    elsewhere = layer + "def run(node):\n    node.forward()\n"
    fork = project("from megatron.core.layer import Layer\nclass Mine(Layer):\n    def forward(self, states): ...\n")

    assert breaks(fork, core({"layer.py": elsewhere}), core({"layer.py": layer})) == []


def test_function_that_refuses_returns_nothing() -> None:
    """It replaces the failing import by an error of its own."""
    fork = project(
        "def scheduler():\n    try:\n        from megatron.core.data import Scheduler\n"
        "    except ImportError as error:\n        raise RuntimeError('too old') from error\n    return Scheduler\n"
        "def run(size):\n    return scheduler()(size)\n"
    )

    assert breaks(fork, core({})) == []
    assert breaks(fork, core({"data.py": "class Scheduler:\n    def __init__(self): ...\n"})) == [
        ("definite", "Scheduler.__init__() takes 1 positional argument but 2 were given")
    ]


@pytest.mark.parametrize(
    ("context", "ending", "kind"),
    [
        ("plugin('x')", "print(1)", "silently-off"),
        ("plugin('x')", "raise", "definite"),
        ("contextlib.suppress(ImportError)", "", "silently-off"),
        ("contextlib.suppress(OSError)", "", "definite"),
        ("open('x')", "", "definite"),
    ],
)
def test_context_manager_that_swallows_is_a_handler(context: str, ending: str, kind: str) -> None:
    fork = project(
        "import contextlib\n@contextlib.contextmanager\ndef plugin(name):\n    try:\n        yield\n"
        f"    except ImportError:\n        {ending or 'pass'}\n"
        f"with {context}:\n    from megatron.core.new import f\n"
    )

    assert breaks(fork, core({})) == [(kind, breaks(fork, core({}))[0][1])]


def test_copied_signature_is_that_of_its_source() -> None:
    specs = """
        from megatron.core.typed_torch import copy_signature
        def get_submodules(num_experts=None): ...
        @copy_signature(get_submodules)
        def get_spec(*args, **kwargs): return get_submodules(*args, **kwargs)
    """
    calls = project("from megatron.core.specs import get_spec\nget_spec(num_experts=1, legacy=True)")
    message = "get_submodules() got an unexpected keyword argument 'legacy'"
    assert breaks(calls, core({"specs.py": specs})) == [("definite", message)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return get_submodules(*args, **kwargs)", True),
        ("return ModuleSpec(module=None, submodules=get_submodules(*args, **kwargs))", True),
        ("kwargs.pop('legacy', None)\n    return get_submodules(*args, **kwargs)", False),
        ("return get_submodules(**kwargs)", False),
        ("return build(*args, **kwargs)", False),
    ],
)
def test_forwarding_function_has_signature_of_its_callee(body: str, expected: bool) -> None:
    specs = (
        f"from x import build\ndef get_submodules(num_experts=None): ...\ndef get_spec(*args, **kwargs):\n    {body}\n"
    )
    calls = project("from megatron.core.specs import get_spec\nget_spec(num_experts=1, legacy=True)")
    message = "get_submodules() got an unexpected keyword argument 'legacy'"
    assert breaks(calls, core({"specs.py": specs})) == [("definite", message)] * expected


def test_forwarding_constructor_has_signature_of_its_base() -> None:
    layers = """
class Layer:
    def __init__(self, config): ...
class MoELayer(Layer):
    def __init__(self, *args, **kwargs):
        self.is_moe = True
        super().__init__(*args, **kwargs)
"""
    calls = project("from megatron.core.layers import MoELayer\nMoELayer(config=1, legacy=True)")
    message = "Layer.__init__() got an unexpected keyword argument 'legacy'"
    assert breaks(calls, core({"layers.py": layers})) == [("definite", message)]
