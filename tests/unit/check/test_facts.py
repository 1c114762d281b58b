"""Every capability of a machine is there or not, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.check.facts import GIB, MIB, HostFacts, InterpreterFacts, capabilities
from matrix.kit.preflight import Status
from matrix.provision.nvidia.cuda import Cuda
from matrix.provision.nvidia.nvml import Card, Nvml
from tests.unit.check.machines import A800, BARE, H100, NGC


def told(host: HostFacts) -> dict[str, tuple[str, str]]:
    return {answer.question: (answer.status.value, answer.reason) for answer in capabilities(host)}


def noted(host: HostFacts) -> list[str]:
    return [answer.warns for answer in capabilities(host) if answer.warns]


COMPAT = "/usr/local/cuda/compat/lib.real/libcuda.so.555.42.06"


def test_a_machine_that_has_everything_says_what() -> None:
    assert noted(NGC) == []
    assert told(NGC) == {
        "kernel driver": ("yes", "535.129.03"),
        "NVML": ("yes", "sees 2 GPUs, tells of CUDA 12.5"),
        "user-mode driver": ("yes", f"555.42.06, CUDA 12.5; a compat package's: {COMPAT}"),
        "GPU": ("yes", "2 x NVIDIA H100 80GB HBM3, SM 9.0, 80.0 GiB"),
        "NVLink": ("yes", "18 of 18 links up on GPU 0, 1"),
        "CUDA Multicast": ("yes", "the driver says so of 2 of 2 GPUs"),
        "mpirun": ("yes", "mpirun (Open MPI) 4.1.7a1, /usr/local/mpi/bin/mpirun"),
        "Python": ("yes", "3.10.12, /usr/bin/python"),
        "torch": ("yes", "2.4.0a0+3bcc3cddb5.nv24.07, built for CUDA 12.5"),
        "megatron-core": ("yes", "0.9.0"),
        "transformer-engine": ("yes", "1.8.0+37280ec"),
        "torch's mpi backend": ("yes", "torch.distributed.is_mpi_available() says True"),
        "/dev/shm": ("yes", "64.0 GiB, 60.0 GiB free"),
        "host memory": ("yes", "2000.0 GiB, 1900.0 GiB available"),
        "launcher": ("yes", "torchrun, a job of 8"),
    }


def test_a_bare_machine_says_what_is_missing() -> None:
    answers = told(BARE)
    assert {word for word, _ in answers.values()} == {"yes", "no", "unknown"}
    assert answers["user-mode driver"] == ("no", "libcuda.so.1: not there")
    assert answers["GPU"] == ("no", "no user-mode driver, which would show it")
    assert answers["torch"] == ("no", "not installed")
    assert answers["torch's mpi backend"] == ("unknown", "no torch")
    assert answers["kernel driver"] == ("no", "neither /proc/driver/nvidia/version nor NVML tells of one")
    assert answers["NVML"] == ("no", "libnvidia-ml.so.1: not there")
    assert answers["NVLink"] == answers["CUDA Multicast"] == ("no", "no driver, no GPU")
    assert answers["/dev/shm"] == ("unknown", "it is not there, or does not tell its size")
    assert answers["launcher"] == ("no", "nothing that torchrun, mpirun or srun would set is set here")


def test_no_answer_is_silent() -> None:
    assert all(
        reason for host in (BARE, NGC, replace(NGC, nvml=Nvml("535.129.03"))) for _, reason in told(host).values()
    )


@pytest.mark.parametrize(
    ("kernel", "library", "reason"),
    [
        ("535.129.03", "/lib/libcuda.so.535.129.03", "535.129.03, CUDA 12.2; the kernel driver's own"),
        ("535.129.03", "/lib/libcuda.so.555.42.06", "555.42.06, CUDA 12.2; a compat package's"),  # mounted over it
        ("537.13", "/usr/lib/wsl/lib/libcuda.so.1.1", "no version in its name, CUDA 12.2; whose can't be told"),
    ],
)
def test_the_user_mode_driver_is_told_apart_from_the_kernels(kernel: str, library: str, reason: str) -> None:
    answers = told(replace(NGC, driver=kernel, cuda=Cuda("12.2", library, (H100,))))
    assert answers["kernel driver"] == ("yes", kernel)
    assert answers["user-mode driver"] == ("yes", f"{reason}: {library}")


def test_a_container_without_the_drivers_files_says_how_it_gets_them() -> None:
    assert "--device nvidia.com/gpu=all" in told(replace(NGC, cuda=BARE.cuda))["user-mode driver"][1]


def test_where_cuda_does_not_start_what_nvml_sees_is_said_beside_it() -> None:
    broken = Cuda("12.5", COMPAT, problem="cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    answers = told(replace(NGC, cuda=broken))
    assert answers["GPU"] == (
        "no",
        "cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; NVML sees 2 GPUs: NVIDIA H100 80GB HBM3",
    )
    assert answers["CUDA Multicast"] == ("unknown", "the user-mode driver, which would tell, shows no GPU")


def test_gpus_that_this_process_may_not_see_are_counted() -> None:
    few = replace(NGC, cuda=Cuda("12.5", COMPAT, (H100,)))
    assert told(few)["GPU"][1].endswith("80.0 GiB; NVML sees 2, CUDA_VISIBLE_DEVICES chooses")


@pytest.mark.parametrize(
    ("cards", "answer", "notes"),
    [
        (
            (Card("H100", 18, 18), Card("H100", 18, 16), Card("H100", 18, 18)),
            ("no", "18 of 18 links up on GPU 0, 2; 16 of 18 links up on GPU 1"),
            ["NVLinks are down on GPU 1; nvidia-smi nvlink --status says which"],
        ),
        ((Card("L40"), Card("L40")), ("no", "2 GPUs, and no links"), []),
        (
            (Card("A800", 8, 8), Card(problem="GPU is lost")),
            ("no", "8 of 8 links up on GPU 0; GPU is lost on GPU 1"),
            ["NVML says of GPU 1: GPU is lost"],
        ),
        ((Card("A800", 8, 8), Card("L40")), ("no", "8 of 8 links up on GPU 0; no links on GPU 1"), []),
    ],
)
def test_nvlink_is_whole_where_every_link_of_every_gpu_is_up(
    cards: tuple[Card, ...], answer: tuple[str, str], notes: list[str]
) -> None:
    host = replace(NGC, nvml=Nvml("535.129.03", "12.5", cards))
    assert told(host)["NVLink"] == answer
    assert noted(host) == notes


def test_without_nvml_the_links_are_unknown_and_the_reason_is_its() -> None:
    host = replace(NGC, nvml=Nvml(problem="nvmlInit did not return in 30 s"))
    assert told(host)["NVLink"] == ("unknown", "nvmlInit did not return in 30 s")
    assert told(host)["NVML"] == ("no", "nvmlInit did not return in 30 s")


def test_where_the_drivers_crash_nothing_is_denied() -> None:
    """A driver is installed; what it would tell is unknown."""
    crashed = Cuda("12.2", "/lib/libcuda.so.535.129.03", problem="cuInit crashed: SIGSEGV")
    answers = told(replace(BARE, nvml=Nvml(problem="nvmlInit crashed: SIGSEGV"), cuda=crashed))
    assert answers["kernel driver"] == ("unknown", "neither /proc/driver/nvidia/version nor NVML tells of one")
    assert answers["NVLink"] == ("unknown", "nvmlInit crashed: SIGSEGV")
    assert answers["CUDA Multicast"][0] == "unknown"


def test_a_process_that_told_nothing_denies_nothing() -> None:
    """The interpreter could not ask: whether there is a driver or a GPU is not known."""
    reason = "/venv/bin/python ended with status 1: SyntaxError"
    silent = replace(BARE, nvml=Nvml(problem=reason, silent=True), cuda=Cuda(problem=reason, silent=True))
    answers = told(silent)
    for question in ("NVML", "user-mode driver", "GPU", "NVLink"):
        assert answers[question] == ("unknown", reason)
    assert answers["kernel driver"][0] == answers["CUDA Multicast"][0] == "unknown"


def test_what_a_cgroup_allows_is_said_beside_the_memory_of_the_machine() -> None:
    host = replace(NGC, limit=64 * GIB)
    assert told(host)["host memory"][1] == "2000.0 GiB, 1900.0 GiB available; the cgroup here allows 64.0 GiB"


def test_a_containers_small_shm_is_noted() -> None:
    host = replace(NGC, shm=64 * MIB, shm_free=63 * MIB)
    assert told(host)["/dev/shm"] == ("yes", "64.0 MiB, 63.0 MiB free")
    (note,) = noted(host)
    assert "--ipc=host or --shm-size" in note


@pytest.mark.parametrize(
    ("cuda", "said"), [("none", ", built without CUDA"), ("12.1", ", built for CUDA 12.1"), (None, "")]
)
def test_torch_says_what_it_is_built_for(cuda: str | None, said: str) -> None:
    host = replace(NGC, interpreter=replace(NGC.interpreter, torch_cuda=cuda))
    assert told(host)["torch"] == ("yes", f"2.4.0a0+3bcc3cddb5.nv24.07{said}")


def test_gpus_of_two_kinds_are_counted_apart_and_one_without_multicast_is_enough() -> None:
    answers = told(replace(NGC, cuda=Cuda("12.5", "libcuda.so.1", (H100, A800, A800))))
    assert answers["GPU"][1].startswith("1 x NVIDIA H100 80GB HBM3, SM 9.0, 80.0 GiB; 2 x NVIDIA A800")
    assert answers["CUDA Multicast"] == ("no", "the driver says so of 1 of 3 GPUs")


def test_a_torch_that_can_t_be_imported_says_so() -> None:
    broken = InterpreterFacts(
        "python", "3.10.12", {"torch": "2.4.0"}, problems=("import torch: ImportError: libcudnn",)
    )
    assert told(replace(BARE, interpreter=broken))["torch's mpi backend"] == (
        Status.UNKNOWN.value,
        "import torch: ImportError: libcudnn",
    )
