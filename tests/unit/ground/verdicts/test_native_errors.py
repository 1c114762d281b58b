"""Errors of NCCL, NVSHMEM, CUDA and the driver without a Python exception: what the first line states."""

from __future__ import annotations

from typing import Final

import pytest

from matrix.ask.check.kind_answer import answer
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.verdicts.log_match import Reading, match

STARTED: Final = "torchrun pretrain_gpt.py --tensor-model-parallel-size 2\n"
NVSHMEM: Final = "/build/nvshmem/src"
WARN: Final = "gpu-a:10:11 [3] {} NCCL WARN {}"


def read(log: str) -> Reading:
    return match([log], (), kind_table())


def kinds(log: str) -> list[str]:
    return [sighting.kind.id for sighting in read(log).kinds]


def answers(log: str) -> str:
    reading = read(log)
    return "\n".join(fact for kind in reading.kinds for fact in answer(kind, kind_table(), reading.versions).facts)


@pytest.mark.parametrize(
    ("line", "kind", "part"),
    [
        (
            f"{NVSHMEM}/modules/transport/ibgda/ibgda.cpp:2234: NULL value Unable to create ah.\n"
            f"{NVSHMEM}/host/transport/transport.cpp:395: non-zero status: 7 connect EPS failed",
            "nvshmem-error",
            "ibgda.cpp:2234: NULL value Unable to create ah.",
        ),
        (
            f"{NVSHMEM}/host/init/init.cu:nvshmemi_check_state_and_init:1080: nvshmem initialization failed, exiting",
            "nvshmem-error",
            "init.cu:nvshmemi_check_state_and_init:1080: nvshmem initialization failed",
        ),
        (WARN.format("bootstrap.cc:45", "Bootstrap : no socket interface found"), "nccl-warning", "NCCL_SOCKET_IFNAME"),
        (
            WARN.format("init.cc:700", "Duplicate GPU detected : rank 0 and rank 1 both on 1b000"),
            "nccl-warning",
            "LOCAL",
        ),
        (WARN.format("transport/nvls.cc:254", "Cuda failure 1 'invalid argument'"), "nccl-warning", "multicast"),
        (
            WARN.format("misc/socket.cc:3", "Call to connect to 10.0.0.2<4> failed : No route"),
            "nccl-warning",
            "firewall",
        ),
        (
            WARN.format("misc/ibvwrap.cc:182", "Call to ibv_reg_mr_iova2 failed with error Invalid argument"),
            "nccl-warning",
            "nvidia_peermem",
        ),
        (
            WARN.format("misc/ibvwrap.cc:182", "Call to ibv_reg_mr failed with error Cannot allocate memory"),
            "nccl-warning",
            "memlock",
        ),
        ("Invalid handle. Cannot load symbol cublasLtCreate", "shared-object-missing", "cublasLt: its library"),
        (
            "DeepEP timeout check failed: rank = 1, thread = 0, value = 0)\n"
            "DeepEP timeout check failed: rank = 1, thread = 3, value = 1024)\n"
            "DeepEP timeout check failed: rank = 2, thread = 3, value = 1024)",
            "deepep-barrier",
            "rank 1 of the group waits for rank 3",
        ),
        ("[Fri Nov 27 10:11:12 2026] NVRM: Xid (PCI:0000:1b:00): 79, pid=7, name=python, GPU", "gpu-xid", "PCIe"),
    ],
)
def test_native_line_is_named_in_any_program(line: str, kind: str, part: str) -> None:
    assert kinds(f"{line}\n") == kinds(f"{STARTED}{line}\n") == [kind]
    facts = answers(f"{line}\n") + " ".join(answer(read(line).kinds[0], kind_table(), read(line).versions).commands)
    assert part in facts


THREAD: Final = "/p/Indexing.cu:1369: f: block: [3,0,0], thread: [{},0,0] Assertion `index < size` failed.\n"


@pytest.mark.parametrize(
    ("lines", "kind", "part"),
    [
        (THREAD.format(0) + THREAD.format(1), "device-assert", "the check: index < size, in /p/Indexing.cu, line 1369"),
        ("Got cutlass error: Error Internal at: 120\n", "cutlass-error", "Error Internal"),
        (
            "[4] CUDA error at /x/y.cu:33: invalid configuration argument\n",
            "cuda-error",
            "invalid configuration argument",
        ),
        ("gemm failed: CUBLAS_STATUS_NOT_SUPPORTED\n", "cublas-error", "CUBLAS_STATUS_NOT_SUPPORTED"),
        (
            "python: /d/internode.cu:371: void f(int): Assertion `ranks > 1' failed.\n",
            "native-check-failed",
            "ranks > 1",
        ),
    ],
)
def test_native_line_counts_beside_the_stack(lines: str, kind: str, part: str) -> None:
    assert kinds(STARTED + lines) == [kind]
    assert part in answers(STARTED + lines)
    assert kinds(lines) == []


ILLEGAL: Final = "CUDA error: an illegal memory access was encountered"
TERMINATE: Final = f"terminate called after throwing an instance of 'c10::Error'\n  what():  {ILLEGAL}\nframes\n\n"


def test_uncaught_exception_of_cxx_has_its_kind() -> None:
    warning = WARN.format("enqueue.cc:1556", "Cuda failure 700 'an illegal memory access was encountered'")
    reading = read(f"{STARTED}{warning}\n{TERMINATE}")
    assert [(kind.kind.id, kind.line) for kind in reading.kinds] == [("illegal-memory-access", 3)]
    assert ILLEGAL in reading.kinds[0].text
    assert [clue.line for clue in reading.clues] == [2]
    assert kinds(TERMINATE) == []
    assert ILLEGAL in read(TERMINATE).unknown[0].what


ATTENTION: Final = (
    "/b/fused_attn_f16.cu:534 in function f: cuDNN Error: execute(p) failed with message: err {} != CUDA_SUCCESS"
)


@pytest.mark.parametrize(
    ("error", "kind", "part"),
    [
        (f"RuntimeError: {ATTENTION.format(700)}", "illegal-memory-access", ""),
        (f"RuntimeError: {ATTENTION.format(1)}", "attention-kernel-error", "err 1 != CUDA_SUCCESS"),
        (
            "RuntimeError: /b/gemm.cu:5 in function g: cuBLAS Error: the function failed to run",
            "cublas-error",
            "failed to run",
        ),
        (
            "RuntimeError: /b/gemm.cu:5 in function g: Assertion failed. Unable to find suitable cuBLAS GEMM algorithm",
            "cublas-error",
            "MXFP8 has no kernels for 12.0",
        ),
        ("RuntimeError: /b/gemm.cu:5 in function g: Assertion failed: rows", "te-native-error", "rows"),
    ],
)
def test_error_of_a_library_has_its_kind(error: str, kind: str, part: str) -> None:
    """CUDA's error 700 is of an earlier kernel, whichever library reports it."""
    assert kinds(f"{STARTED}{error}\n") == [kind]
    assert part in answers(f"{STARTED}{error}\n")


LAST_ERROR: Final = (
    'Traceback (most recent call last):\n  File "a.py", line 3, in barrier\n'
    "torch.distributed.DistBackendError: NCCL error in: /p/NCCL.cpp:1197, unhandled cuda error, NCCL version "
    "2.18.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'initialization error'\n"
)


def test_last_error_of_nccl_is_explained() -> None:
    assert "CUDA does not start in this process" in answers(LAST_ERROR)


def test_lost_peer_of_cxx_shows_no_kind() -> None:
    assert kinds(f"{STARTED}{TERMINATE.replace(ILLEGAL, 'CUDA error: x. Connection reset by peer')}") == []


@pytest.mark.parametrize(
    "line",
    [
        "NCCL version 2.27.7+cuda13.0",
        WARN.format("net.cc:1", "NET/Plugin : no plugin"),
        "WARN: device mlx5_0 can't allocate a buffer of nvshmem. Skipping",
        "the CUDA error handler is set",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module 580.65",
    ],
)
def test_harmless_lines_show_no_kind(line: str) -> None:
    assert kinds(f"{STARTED}{line}\nerror: exit\n") == []
