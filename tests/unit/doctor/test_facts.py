"""Every capability of a machine is there or not, and says why."""

from __future__ import annotations

from dataclasses import replace

from matrix.answer import Word
from matrix.doctor.facts import Cuda, HostFacts, Interpreter, capabilities
from tests.unit.doctor.machines import A800, BARE, H100, NGC


def told(host: HostFacts) -> dict[str, tuple[str, str]]:
    return {answer.question: (answer.word.value, answer.reason) for answer in capabilities(host)}


def test_a_machine_that_has_everything_says_what() -> None:
    assert told(NGC) == {
        "NVIDIA kernel driver": ("yes", "535.129.03"),
        "user-mode driver": ("yes", "CUDA 12.5, /usr/local/cuda/compat/lib.real/libcuda.so.555.42.06"),
        "GPU": ("yes", "2 x NVIDIA H100 80GB HBM3, SM 9.0, 80.0 GiB"),
        "CUDA Multicast": ("yes", "the driver says so of 2 of 2 GPUs"),
        "mpirun": ("yes", "mpirun (Open MPI) 4.1.7a1, /usr/local/mpi/bin/mpirun"),
        "Python": ("yes", "3.10.12, /usr/bin/python"),
        "torch": ("yes", "2.4.0a0+3bcc3cddb5.nv24.07"),
        "megatron-core": ("yes", "0.9.0"),
        "transformer-engine": ("yes", "1.8.0+37280ec"),
        "torch's mpi backend": ("yes", "torch.distributed.is_mpi_available()"),
        "shared memory": ("yes", "64.0 GiB"),
        "host memory": ("yes", "2000.0 GiB"),
        "launcher": ("yes", "torchrun, a job of 8"),
    }


def test_a_bare_machine_says_what_is_missing() -> None:
    answers = told(BARE)
    assert {word for word, _ in answers.values()} == {"yes", "no", "unknown"}
    assert answers["GPU"] == ("no", "libcuda.so.1 can't be loaded: not there")
    assert answers["torch"] == ("no", "not installed")
    assert answers["torch's mpi backend"] == ("unknown", "no torch")
    assert answers["shared memory"] == ("unknown", "can't be told")
    assert answers["launcher"] == ("no", "none of its variables are set")


def test_gpus_of_two_kinds_are_counted_apart_and_one_without_multicast_is_enough() -> None:
    answers = told(replace(NGC, cuda=Cuda("12.5", "libcuda.so.1", (H100, A800, A800))))
    assert answers["GPU"][1].startswith("1 x NVIDIA H100 80GB HBM3, SM 9.0, 80.0 GiB; 2 x NVIDIA A800")
    assert answers["CUDA Multicast"] == ("no", "the driver says so of 1 of 3 GPUs")


def test_a_torch_that_can_t_be_imported_says_so() -> None:
    broken = Interpreter("python", "3.10.12", {"torch": "2.4.0"}, problems=("import torch: ImportError: libcudnn",))
    assert told(replace(BARE, interpreter=broken))["torch's mpi backend"] == (
        Word.UNKNOWN.value,
        "import torch: ImportError: libcudnn",
    )
