"""Facts of machines for the tests."""

from __future__ import annotations

from matrix.check.facts import GIB, HostFacts, InterpreterFacts, Mpi
from matrix.provision.nvidia.cuda import Cuda, CudaDevice
from matrix.provision.nvidia.nvml import Card, Nvml

H100 = CudaDevice("NVIDIA H100 80GB HBM3", "9.0", 80 * GIB, multicast=True)
A800 = CudaDevice("NVIDIA A800-SXM4-80GB", "8.0", 80 * GIB, multicast=False)
BARE = HostFacts(
    InterpreterFacts("/usr/bin/python3", "3.10.13"),
    nvml=Nvml(problem="libnvidia-ml.so.1: not there"),
    cuda=Cuda(problem="libcuda.so.1: not there"),
)
NGC = HostFacts(
    InterpreterFacts(
        "/usr/bin/python",
        "3.10.12",
        {"torch": "2.4.0a0+3bcc3cddb5.nv24.07", "transformer-engine": "1.8.0+37280ec", "megatron-core": "0.9.0"},
        torch_mpi=True,
        torch_cuda="12.5",
        built_with_mpi=False,
    ),
    driver="535.129.03",
    nvml=Nvml("535.129.03", "12.5", (Card("NVIDIA H100 80GB HBM3", 18, 18),) * 2),
    cuda=Cuda("12.5", "/usr/local/cuda/compat/lib.real/libcuda.so.555.42.06", (H100, H100)),
    mpi=Mpi("/usr/local/mpi/bin/mpirun", "mpirun (Open MPI) 4.1.7a1"),
    shm=64 * GIB,
    shm_free=60 * GIB,
    memory=2000 * GIB,
    available=1900 * GIB,
    environ={"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8"},
)
