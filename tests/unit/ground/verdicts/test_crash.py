"""Crashes in each printer's format are read into one form: signal, exit status, printer, frames innermost first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.verdicts.crash import MOST, NativeCrash, crashes, function_name, located

ILLEGAL = "CUDA error: an illegal memory access was encountered"
MPI, TORCH = "/openmpi/lib/libmpi.so.40", "/site-packages/torch/lib/libtorch_cpu.so"
MANGLED = "_ZN4c10d15ProcessGroupMPI21createProcessGroupMPIESt6vectorIiSaIiEE"
GROUP = "c10d::ProcessGroupMPI::createProcessGroupMPI"

FAULTHANDLER = """Fatal Python error: Segmentation fault

Thread 0x00007f1b2aaaa640 (most recent call first):
  File "/threading.py", line 320 in wait

Current thread 0x00007f1b3eb6b740 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 1885 in _new_process_group_helper
  File "<string>", line 1 in <module>

Extension modules: numpy.core._multiarray_umath (total: 1)
"""
WITH_C_STACK = f"""Fatal Python error: Segmentation fault

Current thread 0x00007f1b3eb6b740 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 1885 in new_group

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x34 [0x5f1c44]
  Binary file "/lib/libc.so.6" [0x7f1b3eb6b740]
  Binary file "{TORCH}", at {MANGLED}+0x2a1 [0x7f1b1d0c2f61]
"""
OPEN_MPI = f"""[node1:4711] *** Process received signal ***
[node1:4711] Signal: Segmentation fault (11)
[node1:4712] *** Process received signal ***
[node1:4712] Signal: Bus error (7)
[node1:4711] Failing at address: 0x28
[node1:4711] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7f476ca5a050]
[node1:4712] [ 0] {MPI}(PMPI_Group_incl+0x6d)[0x7f476cc7e870]
[node1:4711] [ 1] {MPI}(ompi_dpm_mark_dyncomm+0x30)[0x7f476cc7e870]
[node1:4711] [ 2] {TORCH}({MANGLED}+0x163)[0x7f476cc7e870]
[node1:4711] *** End of error message ***
[node1:4712] *** End of error message ***
[node1:4711] [ 3] {MPI}(not_of_this_stack+0x1)[0x7f476cc7e870]
"""
UCX = """[node1:4711 :0:4711] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x28)
==== backtrace (tid:   4711) ====
 0  /hpcx/ucx/lib/libucs.so.0(ucs_handle_error+0x2e4) [0x7f1b00a00004]
 1 0x0000000000052b83 ompi_dpm_mark_dyncomm()  /src/ompi/dpm/dpm.c:1442
 2 0x0000000005cc2f61 c10d::ProcessGroupMPI::createProcessGroupMPI()  ???:0
=================================
 3 0x0000000005cc2f61 not_of_this_stack()  ???:0
"""
C10 = """SIGSEGV(11), PID: 18345, Thread 18345: \n frame #0: c10::get_backtrace[abi:cxx11](unsigned long) + 0x8f (0x7f2 in /c10.so)
frame #1: <unknown function> + 0x3c050 (0x7f260705a050 in /lib/x86_64-linux-gnu/libc.so.6)
frame #2: c10d::ProcessGroupMPI::createProcessGroupMPI(std::vector<int, std::allocator<int> >) + 0x1 (0x7f2 in /t.so)

SIGSEGV(11), PID: 18345, Thread 18346: \n frame #0: pthread_cond_wait + 0x1e8 (0x7f26070a65d8 in /lib/libc.so.6)

"""  # noqa: E501  (as c10 prints)
TERMINATE = """terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: an illegal memory access was encountered
Exception raised from c10_cuda_check_implementation at CUDAException.cpp:43 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f2 in /site-packages/torch/lib/libc10.so)

"""
GLIBC = f"""*** Segmentation fault
Register dump:

 RAX: 0000000000000000   RBX: 0000000000000000

Backtrace:
{MPI}(PMPI_Group_incl+0x6d)[0x7f476cc7e870]

Memory map:
"""
TORCHRUN = """Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 4711)
  traceback : Signal 11 (SIGSEGV) received by PID 4711
"""
MPIRUN_5 = (
    "prterun noticed that process rank 1 with PID 25207 on node node1 exited on\nsignal 11 (Segmentation fault).\n"
)
MPIRUN_EXIT = "  Process name: [prterun-node1-1@1,0]\n  Exit code:    6\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FAULTHANDLER, NativeCrash("SIGSEGV", None, "faulthandler", ("_new_process_group_helper", "<module>"))),
        (
            WITH_C_STACK,
            NativeCrash("SIGSEGV", None, "faulthandler", ("_Py_DumpStack", GROUP, "new_group")),
        ),
        (UCX, NativeCrash("SIGSEGV", None, "ucx", ("ucs_handle_error", "ompi_dpm_mark_dyncomm", GROUP))),
        (C10, NativeCrash("SIGSEGV", None, "c10", ("c10::get_backtrace", GROUP))),
        (TERMINATE, NativeCrash("SIGABRT", None, "terminate", ("c10::Error::Error",), "c10::Error", ILLEGAL)),
        (GLIBC, NativeCrash("SIGSEGV", None, "glibc", ("PMPI_Group_incl",))),
        (TORCHRUN, NativeCrash("SIGSEGV", None, "torchrun")),
        ("(exitcode: 6) local_rank: 0 (pid: 4711) of binary: python", NativeCrash(None, 6, "torchrun")),
        (MPIRUN_5, NativeCrash("SIGSEGV", None, "mpirun")),
        (MPIRUN_EXIT, NativeCrash(None, 6, "mpirun")),
    ],
)  # fmt: skip
def test_each_printer_is_read(text: str, expected: NativeCrash) -> None:
    assert (expected,) == crashes(text)


def test_interleaved_crashes_of_two_processes_are_separated() -> None:
    assert crashes(OPEN_MPI) == (
        NativeCrash("SIGSEGV", None, "open-mpi", ("ompi_dpm_mark_dyncomm", GROUP)),
        NativeCrash("SIGBUS", None, "open-mpi", ("PMPI_Group_incl",)),
    )


def test_crashes_are_in_log_order() -> None:
    assert [crash.printer for crash in crashes(TORCHRUN + UCX + MPIRUN_5)] == ["torchrun", "ucx", "mpirun"]


@given(st.text(alphabet="[]()*:=#0123456789 \nSIGfatalerroxym+/.", max_size=400))
def test_a_log_without_a_crash_has_none(text: str) -> None:
    """Free text in the printers' characters gives no crash and raises nothing."""
    assert crashes(text) == ()


@given(st.integers(0, 30))
def test_a_truncated_backtrace_keeps_its_signal(lines: int) -> None:
    kept = "\n".join(UCX.splitlines()[:lines])
    assert all(crash.signal == "SIGSEGV" for crash in crashes(kept))


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        (MANGLED, GROUP),
        ("_ZNK2at6Tensor5shapeEv", "at::Tensor::shape"),
        ("_ZN8pybind1112cpp_function10initializeIZNS_", "pybind11::cpp_function::initialize"),
        ("c10d::(anonymous namespace)::run(int)", "c10d::{anonymous}::run"),
        ("main", "main"),
        ("<unknown function>", ""),
    ],
)
def test_function_names_are_qualified_without_arguments(printed: str, name: str) -> None:
    assert name == function_name(printed)


@pytest.mark.parametrize(
    ("function", "there"),
    [
        ("createProcessGroupMPI", True),
        ("ProcessGroupMPI::createProcessGroupMPI", True),
        ("GroupMPI::createProcessGroupMPI", False),
        ("createProcessGroup", False),
        ("c10d", False),
    ],
)
def test_functions_match_whole_parts_of_qualified_names(function: str, there: bool) -> None:
    assert there == NativeCrash("SIGSEGV", None, "ucx", ("main", GROUP)).has_frame(function)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 65536,
        "[node1:1" * 8192,
        "[node1:1] *** Process received signal ***\n" + "[node1:1] " * 6553,
        "[n:1 :0:1] Caught signal 11 (x)\n 0 0x0000000000000000 a" + " " * 65536,
        "[n:1 :0:1] Caught signal 11 (x)\n" + "(" * 65536,
        "[n:1 :0:1] Caught signal 11 (x)\n" + "(a" * 32768 + "+0x",
        "Fatal Python error: Segmentation fault\n" * 1680,
        "Fatal Python error: Segmentation fault\n" + '  File "' * 8192,
        "SIGSEGV(11), PID: 1, Thread 1: \n" + "frame #0: " + " + 0x" * 10922,
        "exitcode" + " " * 65536,
        "Process name: " * 4681,
    ],
)
def test_hostile_text_is_read_in_linear_time(line: str) -> None:
    """Each text has 64 KiB, the part of a log that is kept, and repeats what a pattern searches."""
    assert all(not crash.frames for crash in crashes(line))


def test_an_impossible_name_length_ends_demangling() -> None:
    assert function_name("_ZN4c10d" + "9" * 5000 + "x").startswith("c10d")


def test_lines_with_a_launcher_s_tag_are_read() -> None:
    tagged = "".join(f"[1,0]<stderr>:{line}\n" for line in OPEN_MPI.splitlines())
    assert crashes(OPEN_MPI) == crashes(tagged)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Fatal Python error: Bus error\n", [("SIGBUS", "faulthandler", ())]),
        ("Fatal Python error: Deallocating None\n", [(None, "faulthandler", ())]),
        ("terminate called recursively\n", [("SIGABRT", "terminate", ())]),
        ("*** Aborted\n", [("SIGABRT", "glibc", ())]),
        (
            "*** glibc detected *** python: free(): invalid pointer ***\n/l.so(f+0x6d)[0x7f476cc7e870]\n"
            "======= Memory map: ========\n/l.so(g+0x6d)[0x7f476cc7e870]\n",
            [("SIGABRT", "glibc", ("f",))],
        ),
        (
            "SIGBUS(7), PID: 1, Thread 1: \n\nSIGSEGV(11), PID: 2, Thread 2: \n",
            [("SIGBUS", "c10", ()), ("SIGSEGV", "c10", ())],
        ),
        ("SIGNONE(99), PID: 1, Thread 1: \n", [(None, "c10", ())]),
        ("[n:1 :0:1] Caught signal 99 (unknown)", [(None, "ucx", ())]),
        ("[n:1 :0:1] Caught signal 8 (x)\n 0 0x0000000000052b83 f()  /a.c:1\n", [("SIGFPE", "ucx", ("f",))]),
        ("[n:1] *** Process received signal ***\n[n:1] no number\n", [(None, "open-mpi", ())]),
        ("[n:1] *** Process received signal ***\n[n:1] Signal: Killed (9)\n", [("SIGKILL", "open-mpi", ())]),
        ("exitcode : 0 (pid: 1)\n", []),
        ("exitcode : -200 (pid: 1)\n", [(None, "torchrun", ())]),
        ("(exitcode: -6) local_rank: 0", [("SIGABRT", "torchrun", ())]),
    ],
)
def test_signal_of_a_crash(text: str, expected: list[tuple[str | None, str, tuple[str, ...]]]) -> None:
    """None for a number or a word that names no signal."""
    assert [(crash.signal, crash.printer, crash.frames) for crash in crashes(text)] == expected
    assert {crash.exit_code for crash in crashes(text)} <= {None}


def test_number_of_crashes_has_a_limit() -> None:
    assert len(crashes("terminate called recursively\n\n" * (MOST + 6))) == MOST


def test_crashes_have_their_offsets() -> None:
    """In the log's order, whatever the printer."""
    text = f"first line\n{MPIRUN_EXIT}{C10}{TORCHRUN}"
    assert [(offset, crash.printer) for offset, crash in located(text)] == [
        (11, "mpirun"),
        (11 + len(MPIRUN_EXIT), "c10"),
        (text.index("exitcode"), "torchrun"),
    ]


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("_ZNSt6vectorE", "vector"),
        ("_ZNSt3__16vectorE", "__1::vector"),
        ("_ZN4c10d3runERKSs", "c10d::run"),
        ("_ZN", "_ZN"),
        ("c10::f[abi:cxx11](int)", "c10::f"),
        ("??", ""),
        ("f(g(h))", "f"),
    ],
)
def test_names_of_functions(printed: str, name: str) -> None:
    assert function_name(printed) == name


def test_native_frames_precede_those_of_python() -> None:
    """Python 3.14 prints its own first."""
    text = (
        "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "a.py", line 1 in outer\n  File "a.py", line ??? in inner\n'
        '  Binary file "/l.so", at f+0x34 [0x5f1c44]\n  Binary file "/l.so", at ??+0x34 [0x5f1c44]\n'
    )
    assert crashes(text)[0].frames == ("f", "outer", "inner")
