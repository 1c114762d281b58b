"""Judge points of parity, one after the other, in one process that imports torch and megatron-core once.

    python -m matrix.kit.parity.campaign [cpu | cuda] < points > outcomes

Each line of stdin is {"point": {factor: value}, "seed": 1, "deadline": 60, "dtype": "float64"}; all but `point` may be
missing. A line of stdout answers it: `point`, `seed` and `dtype`, the `outcome`, `deviations` and `seconds`.

==========  ===========================================================================================
outcome     meaning
==========  ===========================================================================================
equal       all numbers are those of one rank
deviates    some are not: `deviations`
refused     upstream's own exception: `text`
timeout     no end within the deadline
memory      there was not enough: `text`
no number   the reference has infinity or NaN, whatever the layout has: `text`
card        the card or NCCL refused the ranks: `text`
harness     this project's fault, or that of its stand-ins: `text`, `trace`
==========  ===========================================================================================

On a card all is upstream's and TE's but torch's Adam, where none else is installed; ranks share it over NCCL. Without
one, the CPU stands in for CUDA, and float64 for float32, in a process that compares training steps.

In float64 two orders of a reduction differ by 1e-15, and a defect by more than 1e-9; in float32 a real defect was as
small as rounding. megatron-core names torch.float32 where it needs precision (optimizer, router, gradients), so the
names themselves are replaced, before it is imported.

This adds to matrix.kit.cpu_device what a whole training step needs:

============================================  ========================================================================
name                                          why megatron-core needs it
============================================  ========================================================================
torch.float32, torch.float, Tensor.float      the precision of gradients, of the router, of the optimizer's state
Tensor.type                                   clipping and the distributed optimizer compare it with torch.cuda's names
all_to_all_single, all_gather, reduce_scatter  gloo takes sizes as lists; and refuses tensors of different sizes
torch.empty_like                              parallel loads of checkpoints receive what a peer has read
torch.histc                                   routers before 0.11 count the tokens of experts: integers
torch.cuda.Stream, Event, current_stream ...  overlaps, shared experts and dispatchers; one stream, all in order
Tensor.record_stream, pin_memory              the same
fused_weight_gradient_mlp_cuda                Apex's kernel, without which it refuses to fuse the gradients of weights
============================================  ========================================================================
"""

from __future__ import annotations

import contextlib
import copyreg
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from matrix.ground.catalog.distributions import nccl_sharing
from matrix.kit import absent_packages, cpu_device, te_extension
from matrix.kit.megatron import leave
from matrix.kit.parity import forked_ranks, living_rank, te_kernels
from matrix.kit.parity.factors import CARD, CPU, DTYPES, FLOAT64, Deviation, Leg, Point, Tolerance, Value, compare
from matrix.kit.parity.shards import Draw
from matrix.kit.parity.tiny_model import Device
from matrix.read.machine import cuda

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


SIZES: Final = ("output_split_sizes", "input_split_sizes")


def install_float64_device() -> None:
    """Replace the names above in this process. Call it once, before megatron.core is imported."""
    import torch
    import torch._dynamo  # it reads torch.cuda.Stream and torch.float32 at import: both must still be the real ones

    cpu_device.install()
    if importlib.util.find_spec("triton") is None:  # megatron-core >= 0.17 defines kernels with it at import
        sys.meta_path.append(te_extension.AnyFinder(["triton"]))
    torch.set_num_threads(1)
    torch.storage._dtype_to_storage_type_map()  # kept from now on, with both names
    torch.optim.AdamW = grouped_adam()
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.Tensor.type = _cuda_names(torch.Tensor.type)
    torch.Tensor.record_stream = lambda self, stream: None
    torch.Tensor.pin_memory = lambda self, device=None: self
    torch.empty_like = cpu_device._on_cpu(torch.empty_like)
    torch.histc = _counting_integers(torch.histc)
    torch.distributed.all_to_all_single = _with_lists(torch.distributed.all_to_all_single)
    torch.distributed.all_gather = _gathering_uneven(torch.distributed.all_gather)
    torch.distributed.reduce_scatter = _scattering_uneven(torch.distributed.reduce_scatter)
    torch.cuda.Stream = torch.cuda.Event = Stream
    torch.cuda.current_stream = torch.cuda.default_stream = lambda device=None: ONLY
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.set_device = lambda device: None
    torch.cuda.device_count = lambda: 1
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_, **__: None
    apex: Any = SimpleNamespace(wgrad_gemm_accum_fp32=accumulated, wgrad_gemm_accum_fp16=accumulated)
    sys.modules["fused_weight_gradient_mlp_cuda"] = apex


def accumulated(values: Any, gradient: Any, total: Any) -> None:
    """Add the gradient of a weight to a total, as Apex's kernel does."""
    total.add_(gradient.flatten(0, -2).T @ values.flatten(0, -2))


def _with_lists(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return all_to_all_single for sizes that are tensors; upstream copies them from CUDA as such, gloo takes lists."""

    def exchange(output: Any, given: Any, *sizes: Any, **keywords: Any) -> Any:
        keywords |= dict(zip(SIZES, sizes, strict=False))
        rows = {name: row.tolist() if hasattr(row, "tolist") else row for name, row in keywords.items()}
        return original(output, given, **rows)

    return exchange


def grouped_adam() -> Any:
    """Return torch's AdamW with the step in its groups, where that of Transformer Engine has it: upstream reads it."""
    import torch

    class GroupedAdam(torch.optim.AdamW):
        """AdamW; what it returns, saves and loads has no step of a parameter."""

        __setstate__ = torch.optim.Optimizer.__setstate__  # AdamW's requires the step of a parameter

        def _accelerator_graph_capture_health_check(self) -> None:
            """Ask no card whether it captures: torch 2.15 does where a cell claims one."""

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for state in filter(None, map(self.state.__getitem__, group["params"])):
                    state["step"] = torch.tensor(float(group.get("step", 0)))
            result = super().step(closure)
            for group in filter(lambda group: group["params"], self.param_groups):
                group["step"] = group.get("step", 0) + 1
                for parameter in group["params"]:
                    self.state[parameter].pop("step", None)
            return result

    return GroupedAdam


def _counting_integers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return histc for integers, which CUDA counts and the CPU refuses; routers count the tokens of experts with it."""

    def count(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        counts = original(tensor.double(), *arguments, **keywords)
        return counts if tensor.is_floating_point() else counts.to(tensor.dtype)

    return count


def _uneven(tensors: list[Any]) -> bool:
    return len({tensor.shape for tensor in tensors}) > 1


def _gathering_uneven(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return all_gather for tensors of different sizes, which gloo refuses: each rank sends its own to all."""
    import torch

    def gather(outputs: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        if not _uneven(outputs):
            return original(outputs, tensor, group=group, async_op=async_op)
        outputs[torch.distributed.get_rank(group)].copy_(tensor)
        for rank, output in enumerate(outputs):
            torch.distributed.broadcast(output, torch.distributed.get_global_rank(group, rank), group=group)
        return None

    return gather


def _scattering_uneven(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return reduce_scatter for tensors of different sizes, which gloo refuses: all ranks sum all."""
    import torch

    def scatter(output: Any, tensors: list[Any], op: Any = None, group: Any = None, **keywords: Any) -> Any:
        operation = op or torch.distributed.ReduceOp.SUM
        if not _uneven(tensors):
            return original(output, tensors, op=operation, group=group, **keywords)
        for rank, tensor in enumerate(tensors):
            total = tensor.clone()
            torch.distributed.all_reduce(total, op=operation, group=group)
            if rank == torch.distributed.get_rank(group):
                output.copy_(total)
        return None

    return scatter


class Stream(cpu_device.IdleStream):
    """Replaces CUDA's streams and events: all work is done in the order of its calls."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what CUDA's take."""

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority."""
        return 0, 0


ONLY = Stream()
CUDA_NAMES: Final = {
    "torch.DoubleTensor": "torch.cuda.FloatTensor",
    **dict.fromkeys(("torch.FloatTensor", "torch.BFloat16Tensor"), "torch.cuda.BFloat16Tensor"),
}


def _cuda_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return Tensor.type with the names of CUDA's tensors; float64 has that of float32."""

    def kind(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        answer = original(tensor, *arguments, **keywords)
        return CUDA_NAMES.get(answer, answer)

    return kind


def half_in_float32() -> None:
    """Let bfloat16 be what float32 was, in a rank: mixed precision has its main weights, and rounds to 24 bits."""
    import torch

    half = torch.bfloat16
    torch.bfloat16 = torch.FloatTensor.dtype
    if "transformer_engine.pytorch" in sys.modules:
        from transformer_engine.pytorch import constants, tensor

        constants.TE_DType[torch.bfloat16] = constants.TE_DType[half]
        torch.nn.Module.bfloat16 = tensor._make_module_cast_func(torch.bfloat16)
    torch.Tensor.bfloat16 = lambda tensor: tensor.to(torch.bfloat16)
    names = {torch.bfloat16: "bfloat16"}
    copyreg.pickle(torch.dtype, lambda dtype: names.get(dtype) or str(dtype).removeprefix("torch."))


DEADLINE_S: Final = 60.0  # of one run of all ranks; two steps take about a second
# By name and dtype. Sums in float32 differ by their order; and an update of less than 6e-8 of a parameter is none.
ROUNDING: Final = Device(CARD, "nccl", floor=1e-5, moves=8, idle=1e-3)
HALF: Final = Device(dtype="bfloat16", moves=8)
DEVICES: Final[Mapping[str, Mapping[str, Device]]] = {
    CPU: {FLOAT64: Device(), "bfloat16": HALF, "mixed": replace(HALF, mixed=True)},
    CARD: {dtype: replace(ROUNDING, dtype=dtype) for dtype in DTYPES[CARD]},
}
KEPT: Final = 100  # references; each takes about 0.3 MiB
OUTCOMES: Final = {"upstream": "refused", "transport": "harness", "killed": "harness"}


@dataclass(frozen=True)
class ParityTask:
    """One line of stdin."""

    point: Point
    seed: int = 1
    deadline: float = DEADLINE_S
    dtype: str = FLOAT64

    @classmethod
    def read(cls, line: str) -> ParityTask:
        """Return the task of a line. Raises MatrixError for an impossible point, ValueError for no JSON."""
        row = json.loads(line)
        point = Point.of(row["point"]) if isinstance(row["point"], Mapping) else Point.parse(row["point"])
        return cls(**{**row, "point": point})


@dataclass(frozen=True)
class ParityAnswer:
    """One line of stdout, but for the task's own fields. `largest` is the largest relative difference."""

    outcome: str
    deviations: tuple[Deviation, ...] = ()
    text: str = ""
    trace: str = ""
    largest: float = 0.0


@dataclass
class Comparisons:
    """Judges tasks on a device. `references` are kept, by reference point, seed and dtype: many layouts share one.

    Each has with it whether ranks that had lived measured it. `sets`: see LegRunner.
    """

    name: str = CPU
    references: dict[tuple[Point, int, str], tuple[Any, bool]] = field(default_factory=dict)
    sets: dict[int, forked_ranks.Ranks] = field(default_factory=dict)

    def judge(self, task: ParityTask) -> ParityAnswer:
        """Return the answer to a task."""
        run = LegRunner(self.sets)
        answer = self._judged(task, run)
        return answer if is_taken(answer, run.lived) else self._judged(task, LegRunner(self.sets, fresh=True))

    def close(self) -> None:
        """End the ranks that live on."""
        while self.sets:
            self.sets.popitem()[1].end()

    def _judged(self, task: ParityTask, run: LegRunner) -> ParityAnswer:
        from matrix.kit.parity import layout_step

        if task.point["fp8_params"] and task.dtype.startswith("float"):  # float64, float32
            return ParityAnswer("refused", text="fp8_params=on needs main weights: bfloat16, or mixed on the CPU")
        try:
            reference, lived = self._reference(task, run)
            if isinstance(reference, ParityAnswer):
                return reference
            run.lived = False
            device = DEVICES[self.name][task.dtype]
            measured = measure(task.point, [Draw(task.seed)], task.deadline, device, run)
            if isinstance(measured, ParityAnswer):
                return measured
            run.lived |= lived
            differences = [row for ranks in measured[0] for row in layout_step.differences(reference.numbers, ranks)]
            deviations = compare(differences, reference.tolerance)
            return ParityAnswer(
                "deviates" if deviations else "equal",
                deviations,
                largest=max(difference.size for difference in differences),
            )
        except layout_step.HarnessError as error:
            return ParityAnswer("harness", text=str(error))
        except layout_step.NoNumberError as error:
            return ParityAnswer("no number", text=str(error))

    def _reference(self, task: ParityTask, run: LegRunner) -> tuple[Any, bool]:
        key, device = (task.point.reference(), task.seed, task.dtype), DEVICES[self.name][task.dtype]
        if key not in self.references or (run.fresh and self.references[key][1]):
            draws = [Draw(task.seed, move) for move in range(1 + device.moves)]
            measured = measure(task.point.reference(), draws, task.deadline, device, run)
            if len(self.references) >= KEPT:
                del self.references[next(iter(self.references))]
            refused = isinstance(measured, ParityAnswer)
            self.references[key] = measured if refused else ReferenceNumbers.of(device, measured), run.lived
        return self.references[key]


def is_taken(answer: ParityAnswer, lived: bool) -> bool:
    """Return whether an answer counts: of ranks that had run another layout before, only that all numbers are equal."""
    return not lived or answer.outcome == "equal"


@dataclass(frozen=True)
class ReferenceNumbers:
    """The numbers of one rank, and the tolerance that those with moved weights give."""

    numbers: Any
    tolerance: Tolerance

    @classmethod
    def of(cls, device: Device, measured: Any) -> ReferenceNumbers:
        """Return that of the draws of one rank, the first without a move. Raises HarnessError for one without worth."""
        from matrix.kit.parity import layout_step

        numbers, *moved = (ranks[0] for (ranks,) in measured)
        for reference in (numbers, *moved):
            layout_step.check_reference(reference, device.idle)
        spread = (row for other in moved for row in layout_step.differences(numbers, [other]))
        return cls(numbers, Tolerance.measured(device.floor, spread))


def measure(
    point: Point, draws: Sequence[Draw], deadline_s: float, device: Device, run: LegRunner | None = None
) -> Any:
    """Return the numbers of each rank of each leg of each draw of a point, or the ParityAnswer why there are none."""
    with tempfile.TemporaryDirectory(prefix="parity-") as name:
        folder = Path(name)
        for leg in point.legs:
            if failures := (run or LegRunner({}))(leg, draws, folder, deadline_s, device):
                first = failures[0]
                if refusal := refusal_of_card(failures):
                    return ParityAnswer("card", text=refusal, trace=first.trace)
                return ParityAnswer(OUTCOMES.get(first.origin, first.origin), text=first.text, trace=first.trace)
        return load_numbers(point, folder)


def refusal_of_card(failures: Sequence[forked_ranks.RankFailure]) -> str:
    """Return why the card or NCCL refused ranks, and what to do, where one of them raised that; else ""."""
    texts = "\n".join(failure.text for failure in failures)
    return next((f"{row.why}: {row.fix}" for row in nccl_sharing().refusal if re.search(row.text, texts)), "")


def forked(
    leg: Leg, draws: Sequence[Draw], folder: Path, deadline_s: float, device: Device
) -> list[forked_ranks.RankFailure]:
    """Run one leg in ranks of its own; return their failures."""
    body = partial(save_numbers, leg, draws, folder, device, folder / f"store-{leg.steps.start}")
    return forked_ranks.run(leg.point.ranks, body, folder, deadline_s)


@dataclass
class LegRunner:
    """Runs legs: on the CPU in ranks of their own, on a card in ranks that live on, `sets` by their number.

    `lived`: some had run another leg before. With `fresh` none has; they live on, too.
    """

    sets: dict[int, forked_ranks.Ranks]
    fresh: bool = False
    lived: bool = False

    def __call__(
        self, leg: Leg, draws: Sequence[Draw], folder: Path, deadline_s: float, device: Device
    ) -> list[forked_ranks.RankFailure]:
        """Run one leg; return the failures of its ranks. One ends all of its set."""
        if device.name == CPU:
            return forked(leg, draws, folder, deadline_s, device)
        size = leg.point.ranks
        if self.fresh and size in self.sets:
            self.sets.pop(size).end()
        if size not in self.sets:
            become = start_anew if cuda.initialised() else forked_ranks.serve  # an import did it: no fork has CUDA
            self.sets[size] = forked_ranks.Ranks.forked(size, become)
        ranks = self.sets[size]
        self.lived |= ranks.bodies > 0
        body = partial(train_and_stay, leg, draws, folder, device, ranks.home / "store")
        if failures := ranks.run(body, folder, deadline_s):
            del self.sets[size]
        return failures


def start_anew(rank: int, connection: Connection) -> NoReturn:
    """Become a rank in a new interpreter, with the command line of this one."""
    os.set_inheritable(connection.fileno(), True)
    os.execv(sys.executable, [*sys.orig_argv, str(rank), str(connection.fileno())])  # noqa: S606  (no shell)


def train_and_stay(leg: Leg, draws: Sequence[Draw], folder: Path, device: Device, store: Path, rank: int) -> None:
    """Be a rank of a leg, and then ready for the next one."""
    prepare_card()
    process = living_rank.this_rank()
    save_numbers(leg, draws, folder, device, store, rank)
    process.put_back()


def load_numbers(point: Point, folder: Path) -> Any:
    """Return, by draw and leg, the numbers that the ranks saved."""
    import torch

    def numbers(leg: Leg, rank: int) -> Any:
        return torch.load(folder / f"numbers-{leg.steps.start}-{rank}.pt", weights_only=False)

    by_leg = [zip(*(numbers(leg, rank) for rank in range(leg.point.ranks)), strict=True) for leg in point.legs]
    return list(zip(*by_leg, strict=True))


def save_numbers(leg: Leg, draws: Sequence[Draw], folder: Path, device: Device, store: Path, rank: int) -> None:
    """Be a rank of a leg: connect with the others through `store`, train each draw, save its numbers in `folder`."""
    import torch

    from matrix.kit.parity import layout_step, tiny_model

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(leg.point.ranks)}
    if device.mixed:
        half_in_float32()
    torch.cuda.set_device(0)
    if not torch.distributed.is_initialized():
        file = torch.distributed.FileStore(str(store), leg.point.ranks)
        torch.distributed.init_process_group(device.backend, store=file, rank=rank, world_size=leg.point.ranks)
    tiny_model.initialize(leg.point)
    numbers = [layout_step.run(leg, draw, folder / f"checkpoint-{draw.seed}", device) for draw in draws]
    torch.save(numbers, folder / f"numbers-{leg.steps.start}-{rank}.pt")
    torch.distributed.barrier()  # until all have saved; and a rank that ends early breaks its peers' connections


VARIABLES: Final = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE": "1",  # TE 2.18 reads no state of FP8 without it; these checkpoints are ours
}


def prepare(stand_ins: Mapping[str, Any], te: Path | None = None) -> None:
    """Import torch and megatron-core as float64 on the CPU, once for all ranks that are forked later.

    `stand_ins` are the arguments of matrix.kit.absent_packages.install. `te`, a new folder, is of Transformer Engine's
    stand-in, where its modules are compared.
    """
    os.environ |= VARIABLES
    install_float64_device()
    if te:
        te_kernels.install(te)
    absent_packages.install(**stand_ins)
    from matrix.kit.parity import tiny_model

    tiny_model.preload()
    # Where bytes are those of FP8; in Megatron-FSDP its buffers of float64 would be, too.
    for home in ("distributed.distributed", "distributed.param", "optimizer"):
        te_kernels.widen(f"megatron.core.{home}", "uint8")


@cache
def prepare_card() -> None:
    """Import torch, Transformer Engine where there is one, and megatron-core, once for all ranks that are forked later.

    TF32 is off, which would round to ten bits; and compilers, since each rank would compile anew.
    """
    os.environ |= {**VARIABLES, "NVIDIA_TF32_OVERRIDE": "0", "TORCHDYNAMO_DISABLE": "1"}
    import torch

    from matrix.kit.parity import tiny_model

    if not any(map(importlib.util.find_spec, ("transformer_engine", "apex"))):
        torch.optim.AdamW = grouped_adam()
    tiny_model.preload()


def prepare_cell() -> bool:
    """Prepare a process of a cell on the CPU; return whether the cell has Transformer Engine."""
    has_te = importlib.util.find_spec("transformer_engine") is not None
    prepare({}, Path(tempfile.mkdtemp(prefix="parity-"), "te") if has_te else None)
    return has_te


def serve(lines: TextIO, answers: TextIO, name: str = CPU) -> None:
    """Answer every line on a device."""
    with contextlib.closing(Comparisons(name)) as campaign:
        for line in filter(str.strip, lines):
            started = time.monotonic()
            task = ParityTask.read(line)
            answer = campaign.judge(task)
            row = {"point": dict(task.point.chosen), "seed": task.seed, "dtype": task.dtype, **asdict(answer)}
            row["seconds"] = round(time.monotonic() - started, 3)
            answers.write(json.dumps(row) + "\n")
            answers.flush()


REFERENCE_S = 100.0  # s for the reference; it takes about one
LONGEST = 4  # deviations in a message


class ParityDeviation(AssertionError):
    """The layout's numbers are not those of one rank; the message names quantity, parameter, ratio and step."""


class PointRefused(RuntimeError):
    """The reference does not run, and the layout does: the message is upstream's."""


def deviation(rank: Rank, *, seed: int = 1, **point: Value) -> None:
    """Raise ParityDeviation in every rank if the layout of a point deviates from one rank.

    `point` has the values of factors.toml that are not the default. Raises PointRefused, and ValueError where the job
    has another number of ranks than the layout.
    """
    chosen = Point.of(point)
    if rank.world_size != chosen.ranks:
        raise ValueError(f"{chosen} needs {chosen.ranks} ranks, the job has {rank.world_size}")
    deviations = measured(rank, chosen, seed)
    if deviations:
        rest = f"; {len(deviations)} in all" if len(deviations) > LONGEST else ""
        raise ParityDeviation(f"{chosen}: {'; '.join(map(str, deviations[:LONGEST]))}{rest}")


def measured(rank: Rank, point: Point, seed: int) -> tuple[Deviation, ...]:
    """Return the deviations, the same in every rank. Call it before megatron-core is imported.

    Where upstream refuses the reference, the ranks train all the same: what they raise is upstream's own exception.
    """
    import torch

    from matrix.kit.parity import layout_step

    prepare(rank.stand_ins, rank.workdir / f"te-{rank.rank}" if point["modules"] == "te" else None)

    device, draw = Device(), Draw(seed)
    reference, layout = rank.workdir / "reference", rank.workdir / "layout"
    layout.mkdir(exist_ok=True)
    refused = [""]
    if rank.rank == 0:
        reference.mkdir()
        for leg, folder in [(point.reference().legs[0], reference), *((leg, layout) for leg in point.legs[:-1])]:
            if failures := forked(leg, [draw], folder, REFERENCE_S, device):
                refused = [failures[0].text]
    save_numbers(point.legs[-1], [draw], layout, device, layout / "store", rank.rank)
    torch.distributed.broadcast_object_list(refused, 0)
    if refused[0]:
        raise PointRefused(refused[0])
    expected = ReferenceNumbers.of(device, load_numbers(point.reference(), reference)).numbers
    leave()
    return compare(row for ranks in load_numbers(point, layout)[0] for row in layout_step.differences(expected, ranks))


def main() -> None:
    """Read stdin, write stdout; what libraries print goes to stderr. With two numbers, be a rank: see start_anew."""
    name, *anew = sys.argv[1:] or [CPU]
    if anew:
        rank, descriptor = map(int, anew)
        forked_ranks.serve(rank, Connection(descriptor))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    prepare_card() if name == CARD else prepare_cell()
    serve(sys.stdin, answers, name)


if __name__ == "__main__":
    main()
