"""Build the distributed optimizer with its state on the CPU, for parameters in bfloat16, float32 or FP8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 16  # of the one linear layer


def build(rank: Rank, *, parameters: str, offload: bool = True) -> int:
    """Return the number of parameters for which upstream builds its optimizer.

    "bf16", "fp32" and "fp8" are the parameters. Without a GPU, tensor types have the names that they have on one, and
    there is no stream. "fp8" are bfloat16 parameters that upstream takes for Transformer Engine's blockwise FP8 ones.
    """
    torch = megatron.start(rank)
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, distrib_optimizer, get_megatron_optimizer
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    if rank.device == "cpu":
        names = {torch.float32: "torch.cuda.FloatTensor", torch.bfloat16: "torch.cuda.BFloat16Tensor"}
        convert = torch.Tensor.type
        torch.Tensor.type = lambda tensor, *to: convert(tensor, *to) if to else names[tensor.dtype]
        torch.cuda.current_stream = lambda *_: None
    options: dict[str, Any] = {"optimizer": "adam", "lr": 1e-3, "bf16": parameters != "fp32"}
    if parameters == "fp8":
        options |= {"use_precision_aware_optimizer": True, "fp8_recipe": "blockwise"}
        distrib_optimizer.is_float8tensor = lambda tensor: True
        distrib_optimizer.DistributedOptimizer._is_distopt_quantized_param = staticmethod(lambda tensor: True)
    if offload:
        options |= {"optimizer_cpu_offload": True, "overlap_cpu_optimizer_d2h_h2d": False}
    config = TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=2)
    model = MegatronModule(config)
    dtype = torch.float32 if parameters == "fp32" else torch.bfloat16
    model.weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH, dtype=dtype, device=megatron.device(rank)))
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(use_distributed_optimizer=True, **options), [wrapped])
    megatron.stop()
    return len(optimizer.param_groups)
