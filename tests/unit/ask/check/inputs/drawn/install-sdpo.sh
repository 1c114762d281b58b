#!/bin/bash
# Shortened after scripts/install_vllm_sglang_mcore.sh of dajiaohuang/SDPO (2026): torch comes with vllm, unstated.
USE_MEGATRON=${USE_MEGATRON:-1}
pip install --no-cache-dir "vllm==0.11.0"
wget -nv https://github.com/Dao-AILab/flash-attention/releases/download/v2.8.1/flash_attn-2.8.1+cu12torch2.8cxx11abiFALSE-cp312-cp312-linux_x86_64.whl && \
    pip install --no-cache-dir flash_attn-2.8.1+cu12torch2.8cxx11abiFALSE-cp312-cp312-linux_x86_64.whl
if [ $USE_MEGATRON -eq 1 ]; then
    NVTE_FRAMEWORK=pytorch pip3 install --no-deps git+https://github.com/NVIDIA/TransformerEngine.git@v2.6
    pip3 install --no-deps git+https://github.com/NVIDIA/Megatron-LM.git@core_v0.13.1
fi
