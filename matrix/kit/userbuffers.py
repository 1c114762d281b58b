"""Start of userbuffers in a rank, over Open MPI or not, up to the first line that needs the compiled extension."""

from __future__ import annotations

import ast
import faulthandler
import importlib.util
import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from matrix.kit.megatron import device, wait_for_all
from matrix.kit.rank import LackError

if TYPE_CHECKING:
    from matrix.kit.rank import Rank
if TYPE_CHECKING:
    from matrix.kit.rank import Rank


FUNCTION = "_initialize_tp_communicators"
FILES = ("training/initialize.py", "initialize.py")  # of the package megatron; core 0.4 has no megatron.training
# Each side divides by the ranks of a host, by the four parts of a pipelined overlap, and by the 16 of an FP8 product.
SHAPE = {"seq_length": 512, "micro_batch_size": 1, "hidden_size": 512}
LIBRARIES = {"nccl": "NCCL", "mpi": "MPI"}  # of bootstrap backends; PyPI's torch has no MPI, NGC's and Debian's have
# Results of the stand-in extension's functions: no multicast, not built with MPI.
ANSWERS = {"device_supports_multicast": False, "ubuf_built_with_mpi": False}


def through_megatron(
    rank: Rank,
    *,
    bootstrap: Literal["gloo", "mpi", "nccl"] | None = None,
    parameter_checks: bool = False,
    multicast: bool = False,
    fp8: bool = False,
) -> dict[str, Any]:
    """Call Megatron-LM's _initialize_tp_communicators(); return the groups made and the message where it stopped.

    `bootstrap` is --tp-comm-bootstrap-backend, None for Megatron-LM's default; `fp8` is --fp8-format hybrid, whose
    buffers of all-gathers hold bytes; without it they are of BF16. Raises what upstream raises.
    """
    arguments = {
        **SHAPE,
        "tp_comm_overlap_cfg": None,
        "context_parallel_size": 1,
        "tensor_model_parallel_size": rank.world_size,
        "fp8": "hybrid" if fp8 else None,
        "first_last_layers_bf16": False,
        "tp_comm_bootstrap_backend": bootstrap or "nccl",  # the default since core 0.10, which has the option
    }

    def start() -> None:
        import torch

        require(torch.distributed, bootstrap)  # Transformer Engine would raise RuntimeError
        stand_ins = {"get_args": lambda: types.SimpleNamespace(**arguments)}
        function_of("megatron", FILES, FUNCTION, stand_ins)()

    return started(rank, start, parameter_checks, multicast)


def through_transformer_engine(
    rank: Rank, *, parameter_checks: bool = False, multicast: bool = False
) -> dict[str, Any]:
    """Call Transformer Engine's initialize_ub() as its examples do, without a bootstrap backend."""

    def start() -> None:
        from transformer_engine.pytorch.module.base import initialize_ub

        initialize_ub([SHAPE["seq_length"], SHAPE["hidden_size"]], rank.world_size, bootstrap_backend=None)

    return started(rank, start, parameter_checks, multicast)


def started(rank: Rank, start: Callable[[], None], parameter_checks: bool, multicast: bool = False) -> dict[str, Any]:
    """Run `start` in a rank with torch.distributed initialised, as in Megatron at that point.

    On a machine without a GPU the compiled extension is a stand-in, and the run ends where it is used: the groups that
    bootstrap the userbuffers were made before. `parameter_checks` False is Open MPI as in HPC-X; `multicast` leaves
    UB_SKIPMC unset.
    """
    import torch

    if multicast:
        os.environ.pop("UB_SKIPMC", None)  # Transformer Engine 1.6 - 1.12 tests only whether it exists
    else:
        os.environ["UB_SKIPMC"] = "1"
    prepare_open_mpi(rank, parameter_checks=parameter_checks)
    ends = _claim_device(rank)
    torch.distributed.init_process_group(
        rank.backend, init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    groups = _recorded_groups(torch.distributed)
    stopped_at = ""
    try:
        start()
    except (NotImplementedError, AssertionError) as error:
        stopped_at = str(error)
        if not any(text in stopped_at for text in ends):
            raise
    if not groups:
        raise AssertionError("userbuffers were started and no process group was made for them")
    if rank.device == "cuda":
        from transformer_engine.pytorch.module import base

        getattr(base, "destroy_ub", lambda: None)()  # from 1.8 on
    # Gloo's thread must release its tensors before the interpreter ends: otherwise it crashed there in 1 of about 25
    # runs. The group is not destroyed: under mpirun that hung in 1 of 18 runs (torch 2.6 of Debian 13).
    wait_for_all()
    return {"groups": groups, "stopped at": stopped_at}


def _claim_device(rank: Rank) -> tuple[str, ...]:
    """Select the rank's GPU, or replace it; return the texts of the errors that then end the start."""
    if rank.device == "cpu":
        from matrix.kit import cpu_device, te_extension

        cpu_device.install()
        te_extension.install(rank.workdir / f"te-{rank.rank}", ANSWERS)
        return "is a stand-in: no compiled Transformer Engine", "Torch not compiled with CUDA enabled"
    import torch

    torch.cuda.set_device(device(rank))
    return ()


def _recorded_groups(distributed: Any) -> list[str]:
    """Return a list to which torch.distributed adds the backend of each group that it makes from now on."""
    backends: list[str] = []
    new_group = distributed.new_group

    def recorded(*positional: Any, **options: Any) -> Any:
        require(distributed, options.get("backend"))
        group = new_group(*positional, **options)
        backends.append(str(distributed.get_backend(group)))
        return group

    distributed.new_group = recorded
    return backends


def require(distributed: Any, backend: str | None) -> None:
    """Raise LackError for a bootstrap backend whose library torch is built without."""
    if backend in LIBRARIES and not getattr(distributed, f"is_{backend}_available")():
        raise LackError(f"needs {LIBRARIES[backend]} for this bootstrap backend; this torch is built without")


def function_of(package: str, files: tuple[str, ...], name: str, given: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function of upstream, compiled from its file together with the imports that it uses.

    Its module can't be imported as a whole: it imports the whole training loop. `given` are values of names that
    replace those imports. Raises FileNotFoundError or LookupError when upstream has no such file or function.
    """
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    paths = [path for folder in folders for file in files if (path := Path(folder, file)).is_file()]
    if not paths:
        raise FileNotFoundError(f"no {' or '.join(files)} in {package}: {folders}")
    tree = ast.parse(paths[0].read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not functions:
        raise LookupError(f"{paths[0]} has no {name}")
    used = {node.id for node in ast.walk(functions[0]) if isinstance(node, ast.Name)}
    imports = []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            node.names = [
                alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in used - given.keys()
            ]
            if node.names:
                imports.append(node)
    namespace = dict(given)
    exec(compile(ast.Module([*imports, *functions], []), paths[0], "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    return function


def prepare_open_mpi(rank: Rank, *, parameter_checks: bool) -> None:
    """Set parameter checks on, or off as in HPC-X, and put Open MPI's files into the rank's folder.

    A crash can leave these files behind; they are removed with the folder. On a GPU, faulthandler is switched off:
    before Python 3.14 it prints no C stack, and prevents Open MPI and UCX from printing theirs.
    """
    if rank.device == "cuda":
        faulthandler.disable()
    os.environ["OMPI_MCA_mpi_param_check"] = str(int(parameter_checks))  # noqa: SIM112  (its name)
    os.environ["TMPDIR"] = str(rank.workdir)  # its session folder
    os.environ["OMPI_MCA_btl_sm_backing_directory"] = str(rank.workdir)  # noqa: SIM112  (else /dev/shm)
