"""Machines for the tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from matrix.ask.check.job_site import JobSite
from matrix.ground.catalog.failure import GIB
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, Nvml, PythonEnvironment

H100 = Gpu("NVIDIA H100 80GB HBM3", "9.0", 80 * GIB, multicast=True)
A800 = Gpu("NVIDIA A800-SXM4-80GB", "8.0", 80 * GIB, multicast=False)
BARE = JobSite(
    PythonEnvironment("3.10.13", path=Path("/usr/bin/python3")),
    Machine(
        nvml=Nvml(problem="libnvidia-ml.so.1: not there"),
        cuda=Cuda(problem="libcuda.so.1: not there"),
    ),
)
NGC = JobSite(
    PythonEnvironment(
        "3.10.12",
        {"torch": "2.4.0a0+3bcc3cddb5.nv24.07", "transformer-engine": "1.8.0+37280ec", "megatron-core": "0.9.0"},
        path=Path("/usr/bin/python"),
        torch_mpi=True,
        torch_cuda="12.5",
        te_mpi=False,
    ),
    Machine(
        driver="535.129.03",
        nvml=Nvml("535.129.03", "12.5", (Gpu("NVIDIA H100 80GB HBM3", links=18, up=18),) * 2),
        cuda=Cuda("12.5", "/usr/local/cuda/compat/lib.real/libcuda.so.555.42.06", (H100, H100)),
        mpirun=("/usr/local/mpi/bin/mpirun", "mpirun (Open MPI) 4.1.7a1"),
        shm=64 * GIB,
        shm_free=60 * GIB,
        memory=2000 * GIB,
        available=1900 * GIB,
    ),
    {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8"},
)


def changed(site: JobSite, **machine: object) -> JobSite:
    """Return the site with these fields of its machine."""
    return replace(site, machine=replace(site.machine, **machine))  # type: ignore[arg-type]
