"""Query NVIDIA's two driver libraries, without torch and without a CUDA context.

cuda       the user-mode driver, libcuda    -> Cuda: the driver that a process of this environment gets
nvml       the management library, NVML     -> Nvml: the kernel driver, the GPUs and their NVLinks
devices    queries both in a separate process, which may hang or crash

Both are bound by ctypes: a dozen functions that take and return numbers and texts (docs/drivers.md gives the reason).
"""
