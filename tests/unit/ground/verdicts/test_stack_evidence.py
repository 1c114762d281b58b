"""What shows that Megatron's stack ran, and what other programs print too."""

from __future__ import annotations

import pytest

from matrix.ground.verdicts.kind_match import EvidenceScan, evidence_in, names_core
from matrix.ground.verdicts.text import is_of_stack


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('  File "/x/megatron/core/parallel_state.py", line 3, in f', "megatron"),
        ('  File "/x/transformer_engine/pytorch/module/base.py", line 3, in f', "transformer_engine"),
        ("megatron.core.dist_checkpointing.core.CheckpointingException: no file", "megatron"),
        ("megatron-core==0.9.0", "megatron"),
        ("Megatron-LM of August", "Megatron"),
        ("Successfully installed transformer-engine-2.4.0", "transformer-engine"),
        ("Transformer Engine 2.4.0", "Transformer Engine"),
        ("see https://github.com/NVIDIA/TransformerEngine", "TransformerEngine"),
        ("python train.py --seq-length 131072", "--seq-length"),
        ("python train.py --pipeline-model-parallel-size 2", "pipeline-model-parallel-size"),
        ("python train.py --context-parallel-size 2", "--context-parallel-size"),
        ("  tensor_model_parallel_size ...... 2", "tensor_model_parallel_size"),
        (" iteration 10/ 500000 | consumed samples: 10 |", "consumed samples"),
        ("export NVTE_FLASH_ATTN=0", "NVTE_FLASH_ATTN"),
        ("Launch app with UB_SKIPMC=1", "UB_SKIPMC"),
        ("", ""),
        ("RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.", ""),
        ('  File "/x/TTS/bin/train_tts.py", line 3, in main', ""),
        ('  File "/x/torch/utils/data/dataloader.py", line 3, in _try_get_data', ""),
        ('  File "/x/torch/distributed/run.py", line 3, in main', ""),  # torchrun starts any job
        ("import transformers; max_seq_length=8192; --seq_length 3", ""),
        ("import transformers; the engine is parallel; --tensor-parallel-size 2", ""),  # vLLM's
    ],
)
def test_evidence_of_the_stack(text: str, shown: str) -> None:
    assert evidence_in(text) == shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("initialize_ub() got an unexpected keyword argument 'tp_size'", True),
        ("item.index.fqn not in md", True),
        ("'_MeshEnv' object has no attribute 'child_to_root_mapping'", True),
        ("Fp8Padding.__init__() got an unexpected keyword argument 'align_size'", True),
        ("list index out of range create_default_global_save_plan", True),
        ("list index out of range _get_cuda_arch_flags", False),
        ("expected string or bytes-like object __init__", False),
        ("argument of type 'NoneType' is not iterable", False),
        ("DataLoader worker (pid 12) is killed by signal: Killed", False),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12 bytes", False),
        ("unable to allocate shared memory(shm) for file </torch_12_34>: No space left on device", False),
        ("No module named 'pkg_resources'", False),
        ("has no attribute 'additional_special_tokens'", False),
        ("PMPI_Group_incl mpi4py", False),
        ("createProcessGroupMPI", True),
        ("offset must be non-negative and no greater than buffer length (12)", False),
        ("", False),
    ],
)
def test_message_names_the_stack(text: str, expected: bool) -> None:
    assert is_of_stack(text) is expected


@pytest.mark.parametrize("size", [1, 3, 17, 18, 100])
def test_evidence_across_parts_is_found(size: int) -> None:
    """The parts themselves are unchanged."""
    for text, shown in (("x" * 40 + "import transformer_engine\n" + "y" * 40, "transformer_engine"), ("x" * 99, "")):
        scan = EvidenceScan(text[start : start + size] for start in range(0, len(text), size))
        assert "".join(scan) == text
        assert scan.evidence == shown


@pytest.mark.parametrize(
    ("text", "core"),
    [
        ("packed_seq_params", True),
        ("virtual_pipeline_model_parallel_size", True),
        ("decoder.layers.0.self_attention.linear_qkv.weight", True),
        ("model.layers.0.self_attn.q_proj.weight", False),
        ("attention_mask", False),
        ("my_packed_seq_params_of", False),
    ],
)
def test_names_of_core_are_its_own(text: str, core: bool) -> None:
    assert names_core(text) is core
