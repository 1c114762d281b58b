"""Answers that are computed from a log: packages, symbols, releases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ask.check import kind_answer
from matrix.ask.check.kind_answer import KindAnswer, answer, says_something
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.verdicts.crash import plain_name
from matrix.ground.verdicts.kind_match import KindSighting, VersionsSeen
from matrix.read.api.recording import spans
from tests.unit.catalogs import captured_by

KIND = kind_table().kind[0]
# Those of `tried` and `reserved` are numbers with a unit, as the pattern captures them.
GROUPS = sorted({name for kind in kind_table().kind for name in captured_by(kind)} - {"tried", "reserved"})
CORE_AFTER = 'python -m pip install "megatron-core==0.12.0"'


def answered(seen: str = "", **groups: str) -> KindAnswer:
    versions = VersionsSeen()
    versions.add(seen)
    return answer(KindSighting(KIND, 1, "", tuple(groups.items())), kind_table(), versions)


@pytest.mark.parametrize("group", ["module", "callable", "owner", "package"])
def test_name_of_the_own_code_has_no_answer(group: str) -> None:
    own = KindSighting(KIND, 1, "", ((group, "mylib"),), is_own=True)
    assert not says_something(KindAnswer(own, (), ("COMMAND",)))


def test_method_of_an_unknown_class_has_no_answer() -> None:
    """Many releases of packages have some function run()."""
    assert answered(callable="Foo.run", keyword="x").facts == ()


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", "c10::detail::torchCheckFail"),
        ("_ZNK3c1010TensorImpl5sizesEv", "c10::TensorImpl::sizes"),
        ("_ZNKSt10filesystem4path12has_filenameEv", "std::filesystem::path::has_filename"),
        ("_Z16check_equal_sizei", "check_equal_size"),
        ("cublasLtMatmul", "cublasLtMatmul"),
        ("_Z", "_Z"),
        ("_ZN9999c10", "c10"),
    ],
)
def test_symbol_has_a_plain_name(symbol: str, name: str) -> None:
    assert plain_name(symbol) == name


@pytest.mark.parametrize(
    ("groups", "parts"),
    [
        ({"symbol": "_ZN3c105ErrorC2E"}, ["c10::Error: a function of PyTorch"]),
        ({"symbol": "_ZN3c104cuda20CUDACachingAllocator9allocatorE"}, ["PyTorch's CUDA part"]),
        ({"symbol": "_ZN2at4_ops5zeros4callE"}, ["at::_ops::zeros::call: a function of PyTorch"]),
        ({"symbol": "_ZN5torch8autograd4NodeD1Ev"}, ["a function of PyTorch"]),
        ({"symbol": "_Z5checkNSt7__cxx1112basic_stringIcE"}, ["C++11 ABI"]),
        ({"symbol": "ncclCommWindowRegister"}, ["a function of NCCL"]),
        ({"symbol": "cublasLtGroupedMatrixLayoutInit_internal"}, ["the loaded cuBLAS is older"]),
        ({"symbol": "cudnnBackendExecute"}, ["a function of cuDNN"]),
        ({"symbol": "__nvJitLinkComplete_12_4"}, ["nvJitLink"]),
        ({"symbol": "nvte_layernorm_fwd"}, ["are of different releases"]),
        ({"symbol": "cuTensorMapEncodeTiled"}, ["the driver is older"]),
        ({"symbol": "cudaGetDriverEntryPointByVersion"}, ["the CUDA runtime"]),
        ({"symbol": "PyObject_Vectorcall"}, ["built for another Python"]),
        ({"symbol": "_ZNKSt10filesystem4path12has_filenameEv"}, ["GCC 8 or older"]),
        ({"binary": "/x/flash_attn_2_cuda.cpython-312.so", "symbol": "x"}, ["belongs to flash-attn"]),
        ({"binary": "/a/transformer_engine/wheel_lib/libcore.so", "symbol": "x"}, ["to Transformer Eng"]),
        ({"binary": "/a/amp_C.cpython-310-x86_64-linux-gnu.so", "symbol": "x"}, ["belongs to APEX"]),
        ({"library": "libcudnn_adv.so.9"}, ["cuDNN 9", "nvidia-cudnn-cu12"]),
        ({"library": "libcublas.so.13"}, ["cuBLAS of CUDA 13"]),
        ({"library": "libcublasLt.so.12"}, ["cuBLAS of CUDA 12"]),
        ({"library": "libcudart.so.12"}, ["CUDA 12 runtime"]),
        ({"library": "libnccl.so.2"}, ["NCCL"]),
        ({"library": "libnvshmem_host.so.3"}, ["NVSHMEM"]),
        ({"library": "libc10.so"}, ["before `import torch`"]),
        ({"library": "libcuda.so.1"}, ["no NVIDIA driver"]),
        ({"glibc": "GLIBCXX_3.4.30", "path": "libstdc++.so.6"}, ["GCC 12"]),
        ({"glibc": "GLIBC_2.32", "path": "libc.so.6"}, ["Ubuntu 22.04 has 2.35"]),
        ({"glibc": "CXXABI_1.3.15"}, ["GCC 14"]),
        ({"header": "cudnn.h"}, ["cuDNN's header"]),
        ({"wheel": "flash_attn-2.8.3+cu12torch2.8.whl"}, ["a file of flash-attn's releases"]),
        ({"wheel": "transformer_engine_torch-2.9.0+cu12.whl"}, ["a file of Transformer Engine's releases"]),
        ({"header": "pybind11/pybind11.h"}, ["pybind11's header"]),
        ({"tried": "512.00 MiB", "reserved": "1.00 GiB"}, ["fragments are the cause"]),
        ({"tried": "2.00 GiB", "reserved": "900.00 MiB"}, ["the tensors themselves fill the GPU"]),
        ({"tried": "2.00 GiB", "reserved": "0 bytes"}, ["the tensors themselves fill the GPU"]),
        ({"arch": "compute_120"}, ["CUDA 12.8"]),
        ({"cuda": "12060"}, ["CUDA 12.6 at most"]),
        ({"module": "apex"}, ["APEX", "another program"]),
        ({"module": "amp_C"}, ["APEX"]),
        ({"module": "megatron.training.arguments"}, ["before 0.17.0 have megatron.core alone"]),
        ({"module": "megatron.optimizer"}, ["moved this module"]),
        ({"module": "flash_attn.bert_padding"}, ["belongs to flash-attn"]),
        ({"module": "swift.megatron.model.gpt_bridge"}, ["belongs to ms-swift"]),
    ],
)
def test_tables_explain_what_was_captured(groups: dict[str, str], parts: list[str]) -> None:
    facts = " ".join(answered(**groups).facts)
    assert [part for part in parts if part not in facts] == []


@pytest.mark.parametrize(
    ("groups", "span"),
    [
        (
            {"module": "megatron.core.distributed.finalize_model_grads", "name": "_get_main_grad_attr"},
            "is in megatron-core 0.12.0 and later; missing in 0.4.0 - 0.11.0; the log does not show its version",
        ),
        (
            {"module": "megatron.core.transformer.custom_layers.transformer_engine"},
            "is in megatron-core 0.4.0 - 0.16.1; missing in 0.17.0 and later",
        ),
        (
            {"module": "transformer_engine.pytorch.attention", "name": "check_set_window_size"},
            "is in TE 1.2.0 - 2.1.0; missing in 1.0.0 - 1.1.0, 2.2.0 and later",
        ),
        ({"module": "megatron.core.nothing"}, "no recorded release of megatron-core (0.4.0 - "),
        ({"module": "megatron.core"}, "every recorded release of megatron-core"),
    ],
)
def test_releases_that_have_a_name(groups: dict[str, str], span: str) -> None:
    assert span in " ".join(answered(**groups).facts)


def test_nearest_release_is_installed() -> None:
    moved = {"module": "megatron.core.distributed.finalize_model_grads", "name": "_get_main_grad_attr"}
    assert answered("megatron-core==0.9.0", **moved).commands[0] == CORE_AFTER
    assert "the log shows 0.9.0" in answered("megatron-core==0.9.0", **moved).facts[-1]
    window = {"module": "transformer_engine.pytorch.attention", "name": "check_set_window_size"}
    assert "==2.1.0" in answered("transformer_engine 2.4.0", **window).commands[0]


@pytest.mark.parametrize(
    ("module", "installs"), [("megatron.bridge", True), ("megatron.bridge.models.no_such_provider", False)]
)
def test_part_of_a_package_needs_another_release(module: str, installs: bool) -> None:
    found = answered(module=module)
    assert any(command.endswith(" megatron-bridge") for command in found.commands) == installs
    lacking = "no recorded release of Megatron-Bridge (0.3.0 - "
    assert (lacking in " ".join(found.facts)) != installs


def test_new_place_of_a_name_is_stated() -> None:
    window = {"module": "transformer_engine.pytorch.attention", "name": "check_set_window_size"}
    assert "dot_product_attention.utils.check_set_window_size" in answered(**window).facts[-1]


@pytest.mark.parametrize(
    ("callable_name", "keyword", "part"),
    [
        ("RotaryEmbedding.forward", "cp_group", "(cp_group=) is in megatron-core"),
        ("GPTModel.__init__", "no_such_option", "no recorded release of megatron-core"),
        ("DotProductAttention.__init__", "softmax_type", "softmax_type=) is in TE"),
        ("LlamaMultimodalRotaryEmbedding.forward", "mrope_section", "made after MultimodalRotaryEmbedding of megatron"),
        ("LlamaProvider.__init__", "pipeline_model_parallel_split_rank", "is in megatron-core 0.4.0 - 0.13.1; missing"),
        ("NoSuchClass.forward", "x", ""),
        ("", "x", ""),
    ],
)
def test_keyword_is_looked_up(callable_name: str, keyword: str, part: str) -> None:
    facts = answered(callable=callable_name, keyword=keyword).facts
    assert part in " ".join(facts)
    assert bool(facts) is bool(part)


@pytest.mark.parametrize(
    ("owner", "attribute", "part"),
    [
        ("ModelType", "encoder_and_decoder", "ModelType.encoder_and_decoder is in megatron-core"),
        ("NoSuchClass", "x", ""),
    ],
)
def test_attribute_is_looked_up(owner: str, attribute: str, part: str) -> None:
    facts = answered(owner=owner, attribute=attribute).facts
    assert part in " ".join(facts)
    assert bool(facts) is bool(part)


@pytest.mark.parametrize(
    ("exists", "text"),
    [
        ((True, True, False), "1 - 2"),
        ((False, True, True), "2 and later"),
        ((True, False, True), "1, 3 and later"),
        ((True, True, True), "1 - 3"),
        ((None, None, True), "3 and later"),
        ((False, False, False), ""),
    ],
)
def test_spans_of_releases(exists: tuple[bool | None, ...], text: str) -> None:
    assert spans([(str(number), one) for number, one in enumerate(exists, start=1)], True) == text


@given(st.dictionaries(st.sampled_from(GROUPS), st.text(alphabet="ab.:/_Z0N9{} \n'", max_size=12)))
def test_odd_captures_are_answered_without_errors(groups: dict[str, str]) -> None:
    assert answered(**groups).commands


@pytest.mark.parametrize(
    ("having", "lacking", "installed", "expected"),
    [
        (["2.8.0", "2.9.0", "2.20.2"], ["2.6.0", "2.7.0"], "", "2.8.0"),  # it came: an older one is installed
        (["0.12.0", "0.13.1"], ["0.14.0", "0.15.0"], "", "0.13.1"),  # it went: a newer one is
        (["0.12.0", "0.13.1"], ["0.11.0", "0.14.0"], "", "0.13.1"),  # both: code of today lacks what went
        (["0.12.0", "0.13.1"], ["0.11.0", "0.14.0"], "0.11.0", "0.12.0"),
        (["0.12.0", "0.13.1"], ["0.11.0", "0.14.0"], "0.14.0", "0.13.1"),
    ],
)
def test_nearest_release_that_has_it(having: list[str], lacking: list[str], installed: str, expected: str) -> None:
    assert kind_answer._nearest(having, lacking, installed) == expected
