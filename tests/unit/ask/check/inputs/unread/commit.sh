#!/bin/bash
# The Megatron-LM of a commit, as in docker/Dockerfile of THUDM/slime (2026-08).
pip install torch==2.9.1 transformer-engine==2.9.0
git clone https://github.com/NVIDIA/Megatron-LM.git --recursive && cd Megatron-LM && \
  git checkout 1dcf0dafa884ad52ffb243625717a3471643e087 && pip install -e .
