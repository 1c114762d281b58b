"""Rehearsals: cases of level gpu on a machine without GPUs. They test this project; none is a verdict or reported.

The path of a case is the real one: planning on `host`, session, requirements, GPU pool, forkserver, rank, judge. The
parts that are replaced are at its edges:

NVIDIA's driver      tests/image/driver.c, built as libcuda and NVML: GPUs with UUIDs, as CUDA_VISIBLE_DEVICES selects
CUDA, NCCL           the CPU and gloo, in the ranks (device.py)
TE's extension       matrix/kit/te_extension.py; kernels that a case runs are torch's (kernels.py)
memory limits        left out, with the sizes of the case as its `rehearsal` gives them
"""
