# After the installation and the example of docs/source_en/Megatron-SWIFT/Quick-start.md of modelscope/ms-swift (2026-08),
# with the versions of its table.
pip install torch==2.8.0 "megatron-core==0.15.0"
pip install --no-build-isolation "transformer-engine[pytorch]==2.9.0" --no-cache-dir
git clone https://github.com/NVIDIA/apex
cd apex
pip install -v --no-build-isolation --config-settings "--build-option=--cpp_ext" ./
cd ..
pip install mcore-bridge -U
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
NPROC_PER_NODE=2 \
megatron sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' \
    --tensor_model_parallel_size 2 \
    --sequence_parallel true \
    --micro_batch_size 16 \
    --tp_comm_overlap true \
    --recompute_granularity full \
    --cross_entropy_loss_fusion false
