#!/bin/bash
# Shortened after scripts/install_vllm_sglang_mcore.sh of volcengine/verl (0.5).
USE_MEGATRON=${USE_MEGATRON:-1}
USE_SGLANG=${USE_SGLANG:-1}
if [ $USE_SGLANG -eq 1 ]; then
    pip install "sglang[all]==0.4.6.post1" --no-cache-dir && pip install torch-memory-saver
fi
pip install --no-cache-dir "vllm==0.8.5.post1" "torch==2.6.0" "torchvision==0.21.0" "torchaudio==2.6.0"
if [ $USE_MEGATRON -eq 1 ]; then
    NVTE_FRAMEWORK=pytorch pip3 install --no-deps git+https://github.com/NVIDIA/TransformerEngine.git@v2.2
    pip3 install --no-deps git+https://github.com/NVIDIA/Megatron-LM.git@core_v0.12.2
fi
if [ $USE_MEGATRON -eq 1 ]; then
    pip install nvidia-cudnn-cu12==9.8.0.87
fi
