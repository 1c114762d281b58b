#!/bin/bash
# A launcher that reads its settings from one file and starts another, as examples of slime do with scripts/models/*.sh.
set -ex
SCRIPT_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${SCRIPT_DIR}/model-args.sh"
pip install -r requirements-rl.txt
torchrun --nproc_per_node 8 train.py ${MODEL_ARGS[@]} --save /ckpt
