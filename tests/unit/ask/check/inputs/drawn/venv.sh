#!/bin/bash
# Shortened after 3.test_cases/megatron/nemo/kubernetes/venv.sh of aws-samples/awsome-distributed-training.
set -e
pip install git+https://github.com/NVIDIA/NeMo-Run.git@4d056535b5cce475b0536243e2cefcfa3897eee8
pip install torch==2.6.0
pip install --no-deps git+https://github.com/NVIDIA/Megatron-LM.git@b5d90de8e7c7fae5f35be89d665f237970540bed
wget https://github.com/state-spaces/mamba/releases/download/v2.2.2/mamba_ssm-2.2.2+cu118torch2.0cxx11abiFALSE-cp310-cp310-linux_x86_64.whl  # Adjusted for torch 2.0
pip install mamba_ssm-2.2.2+cu118torch2.0cxx11abiFALSE-cp310-cp310-linux_x86_64.whl
pip install nemo_toolkit['all']==2.1.0
pip install "nvidia-modelopt[torch]>=0.19.0" pytest_asyncio
pip install nvidia-resiliency-ext
