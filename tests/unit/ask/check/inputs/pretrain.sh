#!/bin/bash
set -euo pipefail
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NNODES=${SLURM_NNODES:-1}
CHECKPOINT_PATH=$1
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --bf16
    --no-create-attention-mask-in-dataloader
    --reset-attention-mask
)
MODEL_ARGS=(--num-layers 24 --seq-length 65536)
pip install "megatron-core==0.16.1" "torch==2.9.1"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} --save "$CHECKPOINT_PATH"
