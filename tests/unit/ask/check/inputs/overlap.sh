#!/usr/bin/env bash
# The job of TransformerEngine#985: NGC 24.03 with a main of Transformer Engine, eight A800.
docker run --gpus all nvcr.io/nvidia/pytorch:24.03-py3 true
pip install git+https://github.com/NVIDIA/Megatron-LM.git@core_v0.7.0
pip install transformer_engine==1.9.0.dev0+f9dd37f
GPUS_PER_NODE=8
DISTRIBUTED="--nproc_per_node $GPUS_PER_NODE --nnodes 1"
torchrun $DISTRIBUTED pretrain_gpt.py --tensor-model-parallel-size 8 --sequence-parallel --tp-comm-overlap
