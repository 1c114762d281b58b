"""The failures that end-to-end tests and benchmarks run: real ones, for a real run needs a failure that is real.

No other test names a failure (catalog/test_folders.py). Each constant is documented by what the tests rely
on; whoever changes an entry in that respect changes the tests.
"""

from __future__ import annotations

from typing import Final

ARGUMENTS: Final = "cpu-offload-args"
"""At level gpu, with a Transformer Engine that is built in an environment of wheels."""

FUSED: Final = "batch-invariant-gradient"
"""A case of level cpu with a release of Transformer Engine."""

METADATA: Final = "ckpt-rollback-metadata"
"""A case whose checkpoint another release writes."""

SAVE: Final = "dcp-assertion"
"""At level cpu in seconds, without Transformer Engine: on torch 2.4.0 broken with megatron-core 0.8.0 in the cases tp2,
pp2, world1 and train-loop (signature duplicate-fqn), and fixed in 0.9.0 by two changes, one for tp2 and one for pp2.
On torch 2.3.1 it works. At level gpu the case tp4-pp2 takes eight GPUs."""

BEHIND_SAVE: Final = "dcp-write-item"
"""What torch 2.13.0 x megatron-core 0.9.0 shows in a case of SAVE, which works there."""

MASK: Final = "long-context"
"""At level cpu one cell shows four signatures, measures a law, and slices batches (slices.py of its folder)."""

MPI: Final = "tp-overlap"
"""At level cpu: on wheels the mechanism with Open MPI from PyPI, on the image debian-13 ranks by torchrun and mpirun.
It has cases at level gpu with a driver, too."""

BEHIND_MPI: Final = "ub-tp-size"
"""What Transformer Engine 1.8 shows in a case of MPI once the group is made. At level contract it has hundreds of
cells on the base no-torch, and one release of Transformer Engine separates those that break."""

CALL: Final = "cpu-offload-args"
"""At level contract: one commit of Megatron-LM brings it, another one fixes it."""

SHIFTED_CALL: Final = "cpu-offload-shifted"
"""At level contract: one commit of Transformer Engine brings it."""

HARDWARE: Final = "ub-multicast"
"""Read, not run: whether it breaks depends on driver and compute capability, which the stack of a report names."""

NORM: Final = "te-norm-shape"
"""At level contract, on the base no-torch in milliseconds: broken with Transformer Engine 1.12.0."""

PINNED: Final = "cpu-offload-pinned"
"""At level contract: megatron-core 0.17.1 with Transformer Engine 2.9.0 breaks, with any later one it does not.
Certain by the versions alone: image ngc-25.11 breaks with 0.17.1, and not with 0.16.1."""

SETUPTOOLS: Final = "no-pkg-resources"
"""megatron-core 0.8.0 breaks with setuptools 82 and later, whatever torch and Transformer Engine are."""

RESUME: Final = "ckpt-rollback-metadata"
"""At level cpu in seconds on torch 2.13.0: megatron-core 0.14.0 can't read what 0.15.3 wrote, and reads its own."""

COMMON: Final = "ckpt-rollback-common"
"""At level cpu: megatron-core 0.18.2 can't read what 0.19.2 wrote."""

EXTRA_STATE: Final = "te1-extra-state"
"""At level cpu: Transformer Engine 2.3.0 can't read what 1.13.0 wrote."""

QUANTIZED_CALL: Final = "ub-quantization-mode"
"""megatron-core 0.15.0 ends before initialize_ub with Transformer Engine 2.7."""

RESILIENCY: Final = "nvrx-version"
"""megatron-core 0.18.2 with nvidia-resiliency-ext 0.4.1, a package that its cells name."""

NUMPY: Final = "numpy2-overflow"
"""megatron-core 0.15.0 with numpy 2 and later."""

TRANSFORMERS: Final = "transformers5-sentinels"
"""megatron-core 0.15.0 - 0.17.1 with transformers 5 and later; not known with 0.18.0."""

OVERLAP: Final = "tp-overlap"
"""At level gpu its cases start userbuffers, which need Open MPI with megatron-core before 0.10."""

WINDOW: Final = "flash-attn-window"
"""Transformer Engine does not use a flash-attn outside its window; what then runs depends on the job."""

LIBRARIES: Final = "te-cuda-libraries"
"""Transformer Engine 2.16.0 with nvidia-cublas before 13.2."""

ATTENTION_OFF: Final = "fused-attention-off"
"""Its rules of the GPU 12.0 agree with tests/te_attention.toml, which is read from Transformer Engine's sources."""

PADDING_UNFUSED: Final = "padding-between-unfused"
"""Its rules agree with the table, too."""

NO_BACKEND: Final = "no-attention-backend"
"""Its rules agree with the table, too."""
