"""NVIDIA's two driver libraries, asked by themselves: neither torch nor a CUDA context is made.

cuda       the user-mode driver, libcuda    -> Cuda: what a process of this environment gets
nvml       the management library, NVML     -> Nvml: the kernel driver, the GPUs and their NVLinks
devices    asks both in a process of its own, which may hang or crash

Both are bound by ctypes, a dozen functions that take and return numbers and texts; docs/doctor.md says why.
"""
