#!/usr/bin/env bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
# A launcher in the form of examples/models/deepseek_v4/slurm_pretrain.sh of NVIDIA-NeMo/Megatron-Bridge (2026-08).
CONTAINER_IMAGE="nvcr.io/nvidia/nemo:25.09"
WORKSPACE=${WORKSPACE:-/workspace}
SRUN_CMD="srun --mpi=pmix --container-image=$CONTAINER_IMAGE"
CLI_OVERRIDES="model.tensor_model_parallel_size=1 mixed_precision.fp8=hybrid checkpoint.ckpt_format=torch_dist"
CMD="uv run --no-sync python scripts/training/run_recipe.py --recipe llama32_1b_pretrain_config $CLI_OVERRIDES"
$SRUN_CMD bash -c "$CMD"
