"""Every capability of a machine, with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ask.check.job_site import JobSite, capabilities
from matrix.ground.catalog.failure import GIB, MIB
from matrix.ground.catalog.machine import Cuda, Gpu, Nvml, PythonEnvironment
from matrix.kit.preflight import Status
from tests.unit.ask.check.machines import A800, BARE, H100, NGC, changed


def answers_of(host: JobSite) -> dict[str, tuple[str, str]]:
    return {answer.question: (answer.status.value, answer.reason) for answer in capabilities(host)}


def notes_of(host: JobSite) -> list[str]:
    return [answer.warns for answer in capabilities(host) if answer.warns]


COMPAT = "/usr/local/cuda/compat/lib.real/libcuda.so.555.42.06"


def test_a_complete_machine_has_every_capability() -> None:
    assert notes_of(NGC) == []
    assert answers_of(NGC) == {
        "kernel driver": ("yes", "535.129.03"),
        "NVML": ("yes", "2 GPUs, CUDA 12.5"),
        "user-mode driver": ("yes", f"555.42.06, CUDA 12.5; a compat package's: {COMPAT}"),
        "GPU": ("yes", "2 x NVIDIA H100 80GB HBM3, SM 9.0, 80.0 GiB"),
        "NVLink": ("yes", "18 of 18 links up on GPU 0, 1"),
        "CUDA Multicast": ("yes", "the driver reports it for 2 of 2 GPUs"),
        "mpirun": ("yes", "mpirun (Open MPI) 4.1.7a1, /usr/local/mpi/bin/mpirun"),
        "Python": ("yes", "3.10.12, /usr/bin/python"),
        "torch": ("yes", "2.4.0a0+3bcc3cddb5.nv24.07, built for CUDA 12.5"),
        "megatron-core": ("yes", "0.9.0"),
        "transformer-engine": ("yes", "1.8.0+37280ec"),
        "torch's mpi backend": ("yes", "torch.distributed.is_mpi_available() is True"),
        "/dev/shm": ("yes", "64.0 GiB, 60.0 GiB free"),
        "host memory": ("yes", "2000.0 GiB, 1900.0 GiB available"),
        "launcher": ("yes", "torchrun, a job of 8"),
    }


def test_a_bare_machine_lacks_every_capability() -> None:
    answers = answers_of(BARE)
    assert {word for word, _ in answers.values()} == {"yes", "no", "unknown"}
    assert answers["user-mode driver"] == ("no", "libcuda.so.1: not there")
    assert answers["GPU"] == ("no", "no user-mode driver, so no GPU is visible")
    assert answers["torch"] == ("no", "not installed")
    assert answers["torch's mpi backend"] == ("unknown", "no torch")
    assert answers["kernel driver"] == ("no", "neither /proc/driver/nvidia/version nor NVML reports one")
    assert answers["NVML"] == ("no", "libnvidia-ml.so.1: not there")
    assert answers["NVLink"] == answers["CUDA Multicast"] == ("no", "no driver, no GPU")
    assert answers["/dev/shm"] == ("unknown", "missing, or of unknown size")
    assert answers["launcher"] == ("no", "no variable of torchrun, mpirun or srun is set")


def test_every_answer_has_a_reason() -> None:
    assert all(
        reason for host in (BARE, NGC, changed(NGC, nvml=Nvml("535.129.03"))) for _, reason in answers_of(host).values()
    )


@pytest.mark.parametrize(
    ("kernel", "library", "reason"),
    [
        ("535.129.03", "/lib/libcuda.so.535.129.03", "535.129.03, CUDA 12.2; the kernel driver's own"),
        ("535.129.03", "/lib/libcuda.so.555.42.06", "555.42.06, CUDA 12.2; a compat package's"),  # mounted over it
        ("537.13", "/usr/lib/wsl/lib/libcuda.so.1.1", "no version in its name, CUDA 12.2; of unknown origin"),
    ],
)
def test_the_origin_of_the_user_mode_driver(kernel: str, library: str, reason: str) -> None:
    answers = answers_of(changed(NGC, driver=kernel, cuda=Cuda("12.2", library, (H100,))))
    assert answers["kernel driver"] == ("yes", kernel)
    assert answers["user-mode driver"] == ("yes", f"{reason}: {library}")


def test_a_missing_driver_names_the_container_options() -> None:
    assert "--device nvidia.com/gpu=all" in answers_of(changed(NGC, cuda=BARE.machine.cuda))["user-mode driver"][1]


def test_gpus_of_nvml_are_reported_without_cuda() -> None:
    broken = Cuda("12.5", COMPAT, problem="cuInit returned CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    answers = answers_of(changed(NGC, cuda=broken))
    assert answers["GPU"] == (
        "no",
        "cuInit returned CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; NVML reports 2 GPUs: NVIDIA H100 80GB HBM3",
    )
    assert answers["CUDA Multicast"] == ("unknown", "the user-mode driver, which reports it, shows no GPU")


def test_hidden_gpus_are_counted() -> None:
    few = changed(NGC, cuda=Cuda("12.5", COMPAT, (H100,)))
    assert answers_of(few)["GPU"][1].endswith("80.0 GiB; NVML reports 2, CUDA_VISIBLE_DEVICES hides the others")


@pytest.mark.parametrize(
    ("cards", "answer", "notes"),
    [
        (
            (Gpu("H100", links=18, up=18), Gpu("H100", links=18, up=16), Gpu("H100", links=18, up=18)),
            ("no", "18 of 18 links up on GPU 0, 2; 16 of 18 links up on GPU 1"),
            ["NVLinks are down on GPU 1; nvidia-smi nvlink --status lists them"],
        ),
        ((Gpu("L40"), Gpu("L40")), ("no", "2 GPUs without links"), []),
        (
            (Gpu("A800", links=8, up=8), Gpu(problem="GPU is lost")),
            ("no", "8 of 8 links up on GPU 0; GPU is lost on GPU 1"),
            ["NVML reports an error: GPU 1: GPU is lost"],
        ),
        ((Gpu("A800", links=8, up=8), Gpu("L40")), ("no", "8 of 8 links up on GPU 0; no links on GPU 1"), []),
    ],
)
def test_nvlink_requires_every_link_of_every_gpu(
    cards: tuple[Gpu, ...], answer: tuple[str, str], notes: list[str]
) -> None:
    host = changed(NGC, nvml=Nvml("535.129.03", "12.5", cards))
    assert answers_of(host)["NVLink"] == answer
    assert notes_of(host) == notes


def test_without_nvml_the_links_are_unknown() -> None:
    host = changed(NGC, nvml=Nvml(problem="nvmlInit did not return in 30 s"))
    assert answers_of(host)["NVLink"] == ("unknown", "nvmlInit did not return in 30 s")
    assert answers_of(host)["NVML"] == ("no", "nvmlInit did not return in 30 s")


def test_a_crashing_driver_leaves_capabilities_unknown() -> None:
    """A driver is installed, but its capabilities are unknown."""
    crashed = Cuda("12.2", "/lib/libcuda.so.535.129.03", problem="cuInit crashed: SIGSEGV")
    answers = answers_of(changed(BARE, nvml=Nvml(problem="nvmlInit crashed: SIGSEGV"), cuda=crashed))
    assert answers["kernel driver"] == ("unknown", "neither /proc/driver/nvidia/version nor NVML reports one")
    assert answers["NVLink"] == ("unknown", "nvmlInit crashed: SIGSEGV")
    assert answers["CUDA Multicast"][0] == "unknown"


def test_a_failed_query_leaves_capabilities_unknown() -> None:
    """The interpreter could not query the libraries: whether there is a driver or a GPU is unknown."""
    reason = "/venv/bin/python ended with status 1: SyntaxError"
    silent = changed(BARE, nvml=Nvml(problem=reason, silent=True), cuda=Cuda(problem=reason, silent=True))
    answers = answers_of(silent)
    for question in ("NVML", "user-mode driver", "GPU", "NVLink"):
        assert answers[question] == ("unknown", reason)
    assert answers["kernel driver"][0] == answers["CUDA Multicast"][0] == "unknown"


def test_the_cgroup_limit_is_reported_with_the_memory() -> None:
    host = changed(NGC, limit=64 * GIB)
    assert answers_of(host)["host memory"][1] == "2000.0 GiB, 1900.0 GiB available; the cgroup allows 64.0 GiB"


def test_a_containers_small_shm_is_notes_of() -> None:
    host = changed(NGC, shm=64 * MIB, shm_free=63 * MIB)
    assert answers_of(host)["/dev/shm"] == ("yes", "64.0 MiB, 63.0 MiB free")
    (note,) = notes_of(host)
    assert "--ipc=host or --shm-size" in note


@pytest.mark.parametrize(
    ("cuda", "built"), [("none", ", built without CUDA"), ("12.1", ", built for CUDA 12.1"), (None, "")]
)
def test_the_cuda_of_torch_is_reported(cuda: str | None, built: str) -> None:
    host = replace(NGC, python=replace(NGC.python, torch_cuda=cuda))
    assert answers_of(host)["torch"] == ("yes", f"2.4.0a0+3bcc3cddb5.nv24.07{built}")


def test_gpus_of_two_kinds_are_counted_apart() -> None:
    """One GPU without multicast makes the capability absent."""
    answers = answers_of(changed(NGC, cuda=Cuda("12.5", "libcuda.so.1", (H100, A800, A800))))
    assert answers["GPU"][1].startswith("1 x NVIDIA H100 80GB HBM3, SM 9.0, 80.0 GiB; 2 x NVIDIA A800")
    assert answers["CUDA Multicast"] == ("no", "the driver reports it for 1 of 3 GPUs")


def test_a_failed_import_of_torch_is_reported() -> None:
    broken = PythonEnvironment("3.10.12", {"torch": "2.4.0"}, problems=("import torch: ImportError: libcudnn",))
    assert answers_of(replace(BARE, python=broken))["torch's mpi backend"] == (
        Status.UNKNOWN.value,
        "import torch: ImportError: libcudnn",
    )
