"""Kinds of failure in logs: real messages of each kind, and those of other programs."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.kinds import kind_table
from matrix.ground.verdicts.kind_match import KindIndex, KindSighting, VersionsSeen, versions_in
from matrix.ground.verdicts.log_match import Reading, match
from matrix.ground.verdicts.outcome import Frame
from tests.unit.catalogs import real

SITE: Final = "/usr/lib/python3/dist-packages"
HEAD: Final = "Traceback (most recent call last):\n"
CORE: Final = f'  File "{SITE}/megatron/core/models/gpt/gpt_model.py", line 7, in forward\n    x\n'
TE: Final = f'  File "{SITE}/transformer_engine/pytorch/module/linear.py", line 7, in forward\n    x\n'
TORCH: Final = f'  File "{SITE}/torch/serialization.py", line 7, in load\n    x\n'
OTHER: Final = '  File "/app/vllm/worker.py", line 7, in run\n    x\n'


def read(log: str) -> Reading:
    return match([log], (), kind_table())


def kinds(log: str) -> list[str]:
    return [sighting.kind.id for sighting in read(log).kinds]


def only(log: str) -> KindSighting:
    (sighting,) = read(log).kinds
    return sighting


# A frame of the stack before each: what any program prints counts only beside it.
SHOWN: Final = [
    ("te-extension-missing", "AttributeError: module 'transformer_engine' has no attribute 'pytorch'"),
    ("te-extension-missing", "FileNotFoundError: Could not find shared object file: transformer_engine_torch"),
    ("te-extension-missing", "PackageNotFoundError: No package metadata was found for transformer-engine"),
    ("te-extension-missing", "RuntimeError: Found empty `transformer-engine` meta package installed. Install it with"),
    ("undefined-symbol", f"ImportError: {SITE}/amp_C.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops5"),
    ("undefined-symbol", f"OSError: {SITE}/libtransformer_engine.so:\nundefined symbol: cudnnGetVersion"),
    ("libstdcxx-too-old", "ImportError: /lib/libm.so.6: version `GLIBC_2.35' not found (required by /x/ab.so)"),
    ("shared-object-missing", "OSError: libnccl.so.2: cannot open shared object file: No such file or directory"),
    ("shared-object-missing", "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory"),
    (
        "flash-attn-outside-window",
        "ImportError: Supported flash-attn versions are >= 2.1.1, <= 2.8.1. Found flash-attn 2.9.0.",
    ),
    ("attention-backend-missing", "ValueError: No dot product attention backend is available for the provided inputs."),
    ("pybind-arguments", "RuntimeError: Unable to cast Python instance of type <enum 'D'> to C++ type 'a::D'"),
    ("te-native-error", "RuntimeError: /b/TransformerEngine/common/gemm.cu:12 in function cublas_gemm: Unable"),
    (
        "weights-only",
        "UnpicklingError: Weights only load failed. This file can still be loaded\n\tUnsupported global: GLOBAL a.B",
    ),
    ("pickled-class-missing", "AttributeError: Can't get attribute 'Args' on <module 'mine.args' from '/x/args.py'>"),
    ("checkpoint-key-missing", "KeyError: MetadataIndex(fqn='decoder.final_layernorm.weight', offset=None, index=0)"),
    ("checkpoint-key-missing", "RuntimeError: Error(s) in loading state_dict for GPTModel:"),
    ("checkpoint-key-missing", "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.exp_avg.bias."),
    (
        "checkpoint-key-missing",
        "KeyError: \"decoder.layers.self_attention.a_norm.weight from model not in state dict: ['a']\"",
    ),
    (
        "version-required",
        "ImportError: tokenizers>=0.21,<0.22 is required for a normal functioning of this module, but found"
        " tokenizers==0.20.3.",
    ),
    ("numpy-abi", "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96, got 88"),
    ("name-missing", "ImportError: cannot import name 'Router' from 'megatron.core.transformer.moe' (/x/__init__.py)"),
    ("name-missing", "AttributeError: module 'megatron.core.mpu' has no attribute 'get_rank'. Did you mean: 'rank'?"),
    ("module-missing", "ModuleNotFoundError: No module named 'amp_C'"),
    (
        "module-missing",
        "ModuleNotFoundError: No module named 'megatron.core.nothing'; 'megatron.core' is not a package",
    ),
    ("package-metadata-missing", "PackageNotFoundError: No package metadata was found for flash-attn"),
    ("unexpected-keyword", "TypeError: RotaryEmbedding.forward() got an unexpected keyword argument 'offset'"),
    ("pybind-arguments", "TypeError: layernorm_fwd(): incompatible function arguments. The following argument types"),
    ("no-kernel-image", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("no-kernel-image", "RuntimeError: HIP runtime error: invalid device function. hip_check_error.hpp: 18"),
    ("illegal-memory-access", "AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("illegal-memory-access", "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"),
    ("device-assert", "RuntimeError: CUDA error: device-side assert triggered"),
    (
        "cublas-error",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle`",
    ),
    ("cuda-library-error", "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"),
    ("attention-kernel-error", "RuntimeError: /b/x/fused_attn_fp8.cu:12 in function f: cuDNN Error: bad"),
    ("capture-not-permitted", "RuntimeError: CUDA error: operation not permitted when stream is capturing"),
    ("cuda-error", "RuntimeError: CUDA error: unspecified launch failure"),
    ("gpu-out-of-memory", "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total"),
    (
        "driver-too-old",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update",
    ),
    (
        "cuda-home-missing",
        "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
    ),
    ("build-stopped", "RuntimeError: Error compiling objects for extension"),
    ("argument-missing", "TypeError: GPTModel.forward() missing 1 required positional argument: 'attention_mask'"),
    (
        "attribute-missing",
        "AttributeError: 'TransformerConfig' object has no attribute 'moe'. Did you mean: 'mo'?",
    ),
    ("attribute-missing", "AttributeError: type object 'ModelType' has no attribute 'encoder_and_decoder'"),
    (
        "architecture-unknown",
        "ValueError: has model type `q` but Transformers does not recognize this architecture.",
    ),
    (
        "shared-memory-full",
        "RuntimeError: DataLoader worker (pid 3) is killed by signal: Bus error. It is",
    ),
    ("unsupported-arch", "ValueError: Unknown CUDA arch (13.0) or GPU not supported"),
    ("refused-by-stack", "AssertionError: Tensor parallel output gradients are not supported here"),
]


@pytest.mark.parametrize(("kind", "error"), SHOWN)
def test_kind_is_shown_beside_the_stack(kind: str, error: str) -> None:
    assert kinds(HEAD + CORE + error + "\n") == [kind]


# What any other program prints in the same words, without the stack.
MANY: Final = frozenset(kind for kind, _ in SHOWN) - {
    "attention-kernel-error",
    "te-extension-missing",
    "flash-attn-outside-window",
    "attention-backend-missing",
    "te-native-error",
}


@pytest.mark.parametrize(("kind", "error"), [row for row in SHOWN if row[0] in MANY])
def test_kind_needs_the_stack(kind: str, error: str) -> None:
    names = ("megatron", "transformer_engine", "amp_c", "flash-attn", "libnccl")  # a CUDA library: in any program
    names_stack = any(name in error.lower() for name in names)
    assert kinds(HEAD + OTHER + error + "\n") == [kind] * names_stack


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("undefined-symbol", "python: symbol lookup error: /x/libtorch_cuda.so: undefined symbol: ncclCommRegister"),
        (
            "attention-backend-missing",
            "Available backends = {FlashAttention=False, FusedAttention=False, UnfusedDotProductAttention=False}",
        ),
        (
            "nan-or-inf",
            "ERROR:megatron.core.rerun_state_machine:Unexpected result inf on rank 3 at iteration #17 "
            "invokation #1 (message='found Inf in local grad norm for bucket #2 in backward pass before data')",
        ),
        (
            "image-needs-newer-driver",
            "ERROR: This container was built for NVIDIA Driver Release 580.65 or later, but\n"
            "       version 550.90.07 was detected and compatibility mode is UNAVAILABLE.",
        ),
        ("header-missing", "/x/include/ATen/cudnn/Types.h:3:10: fatal error: cudnn.h: No such file or directory"),
        ("build-error", "x.cu(3): error: expected a ';'\nninja: build stopped: subcommand failed."),
        ("build-stopped", "FAILED: x.o\nninja: build stopped: subcommand failed."),
        ("build-stopped", "make: *** No targets specified and no makefile found.  Stop."),
        (
            "host-out-of-memory",
            "slurmstepd: error: failed\nkernel: Out of memory: Killed process 4711 (python), anon-rss:7kB",
        ),
        (
            "forward-compatibility",
            "ERROR: The NVIDIA Driver is present, but CUDA failed to initialize.  GPU functionality",
        ),
        ("unsupported-arch", "error: x\nnvcc fatal   : Unsupported gpu architecture 'compute_120'"),
        (
            "no-wheel",
            "error: exited with 1\nERROR: No matching distribution found for transformer-engine-torch==2.99",
        ),
        ("attention-kernel-error", "/b/fused_attn.cu:373 in function operator(): cuDNN Error: bad"),
        ("te-native-error", "/b/gemm.cu:373 in function operator(): CUDA Error: bad"),
    ],
)
def test_kind_of_text_without_exception(kind: str, text: str) -> None:
    assert kinds(f"python pretrain_gpt.py --seq-length 8\n{text}\n") == [kind]


@pytest.mark.parametrize(
    "error",
    [
        "ImportError: cannot import name 'Router'",  # of which module?
        "KeyError: 'MetadataIndex'",
        "RuntimeError: shape '[2, 3]' is invalid for input of size 4",
        "TypeError: forward() missing 1 required positional argument: 'x'",
        "ValueError: invalid literal for int() with base 10: 'nan'",
        "KeyError: 'loss'",
    ],
)
def test_other_errors_show_no_kind(error: str) -> None:
    assert kinds(HEAD + CORE.replace("megatron/core", "torch/megatron_like") + TORCH + error + "\n") == []


def test_function_on_the_traceback_decides() -> None:
    frame = f'  File "{SITE}/transformer_engine/pytorch/__init__.py", line 5, in _load_library\n'
    assert kinds(f"{HEAD}{frame}StopIteration\n") == ["te-extension-missing"]
    assert kinds(f"{HEAD}{TE}StopIteration\n") == []
    missing = "ModuleNotFoundError: No module named 'gone.args'\n"
    find = TORCH.replace("in load", "in find_class")
    assert kinds(HEAD + CORE + find + missing) == ["pickled-class-missing"]
    assert kinds(HEAD + CORE + TORCH + missing) == ["module-missing"]


def test_import_in_an_isolated_build() -> None:
    frames = '  File "/tmp/pip-build-env-x/setuptools/build_meta.py", line 3, in get_requires_for_build_wheel\n'
    missing = "ModuleNotFoundError: No module named 'torch'\n"
    assert kinds(f"Collecting transformer-engine\n{HEAD}{frames}{missing}") == ["build-isolation"]
    assert kinds(f"Collecting mypackage\n{HEAD}{frames}{missing}") == []


@pytest.mark.parametrize(
    "error",
    [
        "TypeError: Rotary.forward() got an unexpected keyword argument 'packed_seq_params'",
        "TypeError: Provider.__init__() got an unexpected keyword argument 'pipeline_model_parallel_split_rank'",
        "KeyError: MetadataIndex(fqn='decoder.layers.mlp.linear_fc1.weight', offset=None, index=0)",
    ],
)
def test_names_of_core_show_the_stack(error: str) -> None:
    assert len(kinds(HEAD + OTHER + error + "\n")) == 1


# Logs of other programs that fail in the same ways.
OTHERS: Final = [
    "INFO 05-01 12:00:00 [config.py:1] vLLM tensor_parallel_size=8\n"
    + HEAD
    + OTHER
    + f'  File "{SITE}/vllm/v1/attention/backends/flash_attn.py", line 9, in forward\n'
    + f'  File "{SITE}/flash_attn/flash_attn_interface.py", line 9, in f\n'
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\n",
    HEAD
    + f'  File "{SITE}/vllm/distributed/device_communicators/all2all.py", line 4, in f\n'
    + f'  File "{SITE}/deep_ep/buffer.py", line 4, in f\n'
    + "RuntimeError: CUDA error: an illegal memory access was encountered\n",
    HEAD + f"  File \"{SITE}/django/apps/registry.py\", line 3, in f\nModuleNotFoundError: No module named 'polls'\n",
    HEAD
    + f'  File "{SITE}/lightning/pytorch/trainer/call.py", line 4, in f\n'
    + 'RuntimeError: Error(s) in loading state_dict for LitModel:\n\tMissing key(s) in state_dict: "a.weight".\n',
    HEAD
    + f'  File "{SITE}/transformers/modeling_utils.py", line 4, in f\n'
    + "TypeError: LlamaForCausalLM.__init__() got an unexpected keyword argument 'use_flash_attention_2'\n",
    HEAD
    + f'  File "{SITE}/TTS/utils/io.py", line 4, in load\n'
    + "_pickle.UnpicklingError: Weights only load failed. This file\n",
    HEAD
    + f'  File "{SITE}/deepspeed/ops/op_builder/builder.py", line 4, in f\n'
    + "deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)\n",
    "Warning  OOMKilled  pod/web-1  kernel: Memory cgroup out of memory: Killed process 77 (node) anon-rss:9kB error\n",
    "/bin/ld: error: x.so: undefined symbol: main\n"
    "/usr/bin/foo: symbol lookup error: foo: undefined symbol: Py_Initialize\n",
    "E   AssertionError: assert 1 == 2\ntests/test_a.py:3: AssertionError\n",
    "make: *** No targets specified and no makefile found.  Stop.\nninja: build stopped: subcommand failed.\n",
    "x.c:1:10: fatal error: Python.h: No such file or directory\nCMake Error at CMakeLists.txt:3 (project):\n",
    "Epoch 3: loss is nan, stopping training\nValueError: nan in loss of step 3\n",
    HEAD + OTHER + "ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by /x/scipy/a.so)\n",
    "ERROR: No matching distribution found for tensorflow==1.15\n",
]


COMMAND: Final = "$ torchrun pretrain_gpt.py --tensor-model-parallel-size 2\n"
MODULE: Final = f'  File "{SITE}/torch/nn/modules/module.py", line 7, in _call_impl\n    x\n'


@pytest.mark.parametrize(
    "error",
    [
        "ModuleNotFoundError: No module named 'wandb'",
        "ImportError: cannot import name 'y' from 'mylib' (/home/me/mylib.py)",
        "AttributeError: 'MyConfig' object has no attribute 'foo'",
        "AttributeError: module 'json' has no attribute 'foo'",
        "AttributeError: Can't get attribute 'Foo' on <module '__main__' from '/home/me/launch.py'>",
        "TypeError: Trainer.__init__() got an unexpected keyword argument 'a'",
        "TypeError: Foo.run() missing 1 required positional argument: 'x'",
        "PackageNotFoundError: No package metadata was found for foo",
    ],
)
@pytest.mark.parametrize("frames", ["", HEAD + OTHER])
def test_plain_error_beside_a_command_is_its_own(frames: str, error: str) -> None:
    assert only(COMMAND + frames + error + "\n").is_own


def test_call_through_a_module_is_of_its_caller() -> None:
    error = "TypeError: Mixin.forward() got an unexpected keyword argument 'inference_context'\n"
    assert not only(HEAD + CORE + MODULE + error).is_own
    assert only(HEAD + CORE + OTHER + MODULE + error).is_own


@pytest.mark.parametrize(
    ("frame", "source", "error", "kind", "group"),
    [
        (CORE, "assert rate is not None", "AssertionError", "refused-by-stack", "assert rate is not None"),
        (CORE, "x", "AssertionError", "", ""),
        (CORE, "raise RuntimeError(", "RuntimeError: this path needs b", "refused-by-stack", "this path needs b"),
        (CORE, "raise error", "RuntimeError: this path needs b", "", ""),
        (OTHER, "raise RuntimeError(", "RuntimeError: this path needs b", "", ""),
        (CORE, "raise InstantiationError(", "InstantiationError: Error in call to target 'a.B': KeyError", "", ""),
        (CORE, "raise ImportError(", "ImportError: Please install b", "package-not-installed", "Please install b"),
        (
            MODULE,
            "y = causal_conv1d_fn(x)",
            "TypeError: 'NoneType' object is not callable",
            *["optional-package-missing", "causal_conv1d"],
        ),
        (MODULE, "y = loss_fn(x)", "TypeError: 'NoneType' object is not callable", "", ""),
    ],
)
def test_printed_line_decides(frame: str, source: str, error: str, kind: str, group: str) -> None:
    found = read(COMMAND + HEAD + frame.replace("    x\n", f"    {source}\n") + error + "\n").kinds
    assert [(one.kind.id, *one.groups.values()) for one in found] == [(kind, group)] * bool(kind)


@pytest.mark.parametrize("log", OTHERS)
def test_logs_of_other_programs_show_no_kind(log: str) -> None:
    assert kinds(log) == []


ASSERT: Final = "RuntimeError: CUDA error: device-side assert triggered\n"


def test_frame_of_a_framework_shows_the_stack() -> None:
    assert kinds(HEAD + f'  File "{SITE}/mbridge/core/bridge.py", line 7, in load\n' + ASSERT) == ["device-assert"]
    assert kinds(HEAD + '  File "/home/mbridge/train.py", line 7, in load\n' + ASSERT) == []


@pytest.mark.parametrize(
    "log",
    [
        "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'",
        "ERROR: This container was built for NVIDIA Driver Release 580.65 or later, but\n"
        "       version 550.90.07 was detected and compatibility mode is UNAVAILABLE.",
    ],
)
def test_entry_comes_before_its_kind(log: str) -> None:
    reading = match([f"{HEAD}{CORE}{log}\n"], real().failures, kind_table())
    assert (len(reading.known), reading.kinds) == (1, ())


def test_consequence_shows_no_kind() -> None:
    error = "RuntimeError: Timed out waiting 1800000ms for recv operation: CUDA error: unspecified launch failure\n"
    assert kinds(HEAD + CORE + error) == []


def test_refusal_needs_its_frame_in_the_stack() -> None:
    refusal = "AssertionError: sequence length must be a multiple of 2\n"
    assert kinds(HEAD + CORE + refusal) == ["refused-by-stack"]
    assert kinds(HEAD + CORE + OTHER + refusal) == []


def test_frame_is_the_deepest_of_the_stack() -> None:
    sighting = only(HEAD + CORE + TE + TORCH + "RuntimeError: CUDA error: an illegal memory access was encountered\n")
    assert sighting.frame is not None
    assert (sighting.frame.file, sighting.line) == (f"{SITE}/transformer_engine/pytorch/module/linear.py", 8)


def test_same_fault_of_all_ranks_is_counted() -> None:
    ranks = "".join(f"[rank{rank}]: ModuleNotFoundError: No module named 'apex'\n" for rank in range(3))
    assert (only(ranks).times, only(ranks).groups) == (3, {"module": "apex"})


def test_prefixes_of_ray_are_removed() -> None:
    head = "(Worker pid=1, ip=10.0.0.1) "
    lines = f"{HEAD}{CORE}TypeError: f() got an unexpected keyword argument 'a' [repeated 4x across cluster]\n"
    sighting = only("".join(f"{head}{line}\n" for line in lines.splitlines()))
    assert sighting.frame is not None
    assert (sighting.kind.id, sighting.text) == (
        "unexpected-keyword",
        "TypeError: f() got an unexpected keyword argument 'a'",
    )


def test_versions_are_read_near_faults() -> None:
    seen = VersionsSeen()
    seen.add("megatron_core-0.15.0.dist-info transformer_engine_version': '2.3.0+5de3e148' torch==2.8.0 torch 2.9.1")
    assert seen.of("megatron-core") == ("0.15.0",)
    assert seen.of("transformer-engine") == ("2.3.0+5de3e148",)
    assert seen.of("torch") == ("2.8.0", "2.9.1")
    assert seen.of("flash-attn") == ()


PARTS: Final = [part for _, error in SHOWN for part in error.split(" ")]


@given(st.lists(st.sampled_from([*PARTS, HEAD, CORE, "\n", "\0", "{", "}", "(", "'", "\\n", "\u2028"]), max_size=30))
def test_odd_logs_are_read_without_errors(parts: list[str]) -> None:
    assert read(" ".join(parts)).lines >= 0


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: too many values to unpack (expected 2)",
        "ValueError: not enough values to unpack (expected 3, got 2)",
        "ValueError: invalid literal for int() with base 10: 'x'",
        "ValueError: cannot reshape array of size 3 into shape (2,2)",
        "AttributeError: 'NoneType' object has no attribute 'size'",
        "AttributeError: 'Tensor' object has no attribute 'to_local'",
        "AttributeError: 'Parameter' object has no attribute 'main_grad'",
        "AssertionError",
    ],
)
def test_messages_of_python_are_no_refusals(error: str) -> None:
    assert kinds(HEAD + CORE + error + "\n") == []


@pytest.mark.parametrize(
    ("path", "is_of_stack"),
    [
        ("/workspace/Megatron-LM/megatron/core/transformer/moe/moe_layer.py", True),
        ("megatron/core/parallel_state.py", True),
        ("/opt/megatron-lm/pretrain_gpt.py", True),
        ("/root/Megatron-LM-core_v0.9.0/tools/checkpoint/convert.py", True),
        (f"{SITE}/megatron/energon/loader.py", True),
        ("/src/transformer_engine/pytorch/module/linear.py", True),
        ("/workspace/my_megatron_tools/eval.py", False),
        ("/home/megatron/train.py", False),
        ("/root/slime/backends/megatron_utils/loss.py", False),
        ("/home/transformer_engine_notes/a.py", False),
    ],
)
def test_stack_frames_by_their_package(path: str, is_of_stack: bool) -> None:
    frame = KindIndex(kind_table()).stack_frame([Frame(path, 1, "f")])
    assert (frame is not None) == is_of_stack


NAN: Final = "(message='found NaN in local forward loss calculation')"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (f"Unexpected result nan on rank 3 at iteration #2 invocation #1 {NAN}", "3"),
        (f"Rank 5, node gpu-7, device 1, iteration 9: Unexpected result nan {NAN}", "5"),
    ],
)
def test_both_nan_checks_name_their_rank(line: str, rank: str) -> None:
    (sighting,) = match([f"[rank0]: {line}\n"], [], kind_table()).kinds
    assert (sighting.kind.id, sighting.groups["rank"]) == ("nan-or-inf", rank)


def test_text_of_a_check_is_no_refusal() -> None:
    """The check raises it, and no option is refused: a line is of the kind of its text alone."""
    check = f'  File "{SITE}/megatron/core/rerun_state_machine.py", line 510, in validate_result\n'
    source = "    raise RuntimeError(full_message)\n"
    error = f"RuntimeError: Rank 2, node gpu-a, device 2, iteration 2: Unexpected result nan {NAN}\n"
    assert kinds(HEAD + check + source + error) == ["nan-or-inf"]


def test_printed_nan_norms_are_one_sighting() -> None:
    """The norm is reduced over ranks before it is printed: no check of one rank found it."""
    lines = [
        f" iteration {step}/50 | consumed samples: 20480 | lm loss: 1.1E+01 | grad norm: nan |\n"
        for step in range(5, 9)
    ]
    (sighting,) = match(lines, [], kind_table()).kinds
    assert (sighting.kind.id, sighting.times, sighting.groups) == ("nan-printed", 4, {})


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("/x/torch-2.4.0/a.py", [("torch", "2.4.0")]),
        ("NCCL version 2.27.7+cuda13.0, NVSHMEM v3.4.5", [("nccl", "2.27.7+cuda13.0"), ("nvshmem", "3.4.5")]),
        ("nvidia-nvshmem-cu12==3.4.5", [("nvshmem", "3.4.5")]),
        ("transformer_engine-torch 2.8.0", [("transformer-engine", "2.8.0")]),
        ("Transformer_Engine 2.9, then torch: 2.5.1", [("transformer-engine", "2.9"), ("torch", "2.5.1")]),
        ("\u0130 torch==2.4.0", [("torch", "2.4.0")]),  # a letter whose small form is two
        ("mytorch==2.4.0 nvidia-torch==2.4.0", []),
        ("flash_attn requires torch 2.1, needs numpy 1.26", []),
        ("torch 2 and numpy", []),
    ],
)
def test_versions_that_a_text_names(text: str, versions: list[tuple[str, str]]) -> None:
    assert [*versions_in(text)] == versions
