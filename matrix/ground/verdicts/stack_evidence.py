"""What in a log shows that Megatron's stack ran: without it, an error message may come from any other program."""

from __future__ import annotations

import builtins
import re
import types
from collections.abc import Iterable, Iterator
from typing import Final

# Frames, modules, packages, options, variables and lines of the stack: a text, which is found faster than a pattern,
# and the pattern that it is part of. Each takes a search through a log that has none of them, so they are few.
# "consumed samples" is in Megatron-LM's line of an iteration (training_log in megatron/training/training.py), the sizes
# are in its options and in its list of them.
_STACK: Final = (
    ("egatron", re.compile("[Mm]egatron")),
    ("ransformer", re.compile("[Tt]ransformer[ _-]?[Ee]ngine")),
    ("consumed samples", re.compile("consumed samples")),
    ("arallel", re.compile("(?:tensor|pipeline|expert)[_-]model[_-]parallel[_-]size|--context-parallel-size")),
    ("_PARALLEL_GROUP", re.compile(r"[A-Z]_PARALLEL_GROUP\b")),  # a group's description (parallel_state.py)
    ("--seq-length", re.compile(r"--seq-length\b")),
    ("NVTE_", re.compile(r"\bNVTE_\w+")),
    ("UB_SKIPMC", re.compile("UB_SKIPMC")),
)
# Names of megatron-core's own parameters and modules: within what a fault is about, they show the stack.
_CORE_NAMES: Final = re.compile(
    r"\bpacked_seq_params\b|_model_parallel_|\bgradient_accumulation_fusion\b|\bsharded_state_dict\b|\bpg_collection\b"
    r"|self_attention\.linear_(?:qkv|proj)\b|\bmlp\.linear_fc[12]\b|\bmlp\.experts\.linear_fc|\btransformer_layer_spec\b"
    r"|_extra_state/shard_\d"
)
_LONGEST: Final = 64  # characters of the end of a part that may hold the start of such a text
_NAME: Final = re.compile(r"[\w.]+")
_OF_PACKAGE: Final = re.compile(r"\w[._]\w|[a-z][A-Z]")
_OF_PYTHON: Final = frozenset([*dir(builtins), *dir(types)])
# Names that programs without the stack print in the same messages: of PyTorch's data loader, allocator and builder of
# extensions, of setuptools, transformers, MPI and the standard library.
_OF_OTHERS: Final = re.compile(
    r"DataLoader|DefaultCPUAllocator|torch_\w*|_get_cuda_arch_flags|pkg_resources|additional_special_tokens"
    r"|P?MPI_\w+|mpi4py|popen_fork\.py|__\w+__"
)


def names_in(text: str) -> set[str]:
    """Return the names of a package in a text: `item.index.fqn`, not `NoneType`."""
    return {name for name in _NAME.findall(text) if _OF_PACKAGE.search(name)} - _OF_PYTHON


def is_of_stack(text: str) -> bool:
    """Return whether what a signature compares names something that programs without the stack do not print."""
    return any(not _OF_OTHERS.fullmatch(name) for name in names_in(text))


def evidence_in(text: str) -> str:
    """Return what in a text shows the stack: a frame, module, package, option or line of it; "" where nothing does."""
    searches = (pattern.search(text) for part, pattern in _STACK if part in text)
    return next((shown[0] for shown in searches if shown), "")


def names_core(text: str) -> bool:
    """Return whether a text that a fault is about has a name that only megatron-core's API or checkpoints have."""
    return bool(_CORE_NAMES.search(text))


class EvidenceScan:
    """The parts of a log, unchanged; `evidence` is what shows the stack in those read so far."""

    def __init__(self, chunks: Iterable[str]) -> None:
        self._chunks, self.evidence = chunks, ""

    def __iter__(self) -> Iterator[str]:
        end = ""
        for chunk in self._chunks:
            self.evidence = self.evidence or evidence_in(end + chunk[:_LONGEST]) or evidence_in(chunk)
            end = (end + chunk)[-_LONGEST:] if len(chunk) < _LONGEST else chunk[-_LONGEST:]
            yield chunk
