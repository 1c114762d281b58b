# Shortened after examples/megatron/multi-node/node1.sh of modelscope/ms-swift.
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
CUDA_VISIBLE_DEVICES=0,1,2,3 \
NNODES=2 \
NODE_RANK=0 \
NPROC_PER_NODE=4 \
megatron sft \
    --model Qwen/Qwen2.5-14B \
    --load_safetensors true \
    --tensor_model_parallel_size 4 \
    --packing true \
    --recompute_granularity selective \
    --cross_entropy_loss_fusion true \
    --save megatron_output/Qwen2.5-14B \
    --no_save_optim true \
    --sequence_parallel true \
    --attention_backend flash
