#!/bin/bash
pip install torch==2.8.0 megatron-core==0.15.0 transformer-engine==2.8.0
exec bash scripts/train.sh "$@"
