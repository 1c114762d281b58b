"""The memory of a host that the data loader's attention mask takes, and the longest sequence that fits.

S is the sequence length in tokens. Basis: the cases `peak`, `threshold` and `worker-shm` of long-context, run with
megatron-core 0.6.0 - 0.19.2; "Read" marks figures from source code, not measured. See README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Final

# Bytes per token pair at the peak of a first sample: two float32. Measured at 4096, 8192 and 16384: 7.99 - 8.01.
PEAK: Final = 8
# Bytes per token pair that stay in each worker: the mask as bool, kept for later samples. Measured at 16384: 1.00.
KEPT: Final = 1
# Bytes per token of all else in a sample: tokens, labels, positions (int64), loss mask (float32). Read.
REST: Final = 28
# Bytes per token at the peak of a first sample without a mask. Measured at 131072: 55 to 71.
REST_PEAK: Final = 72
# Batches that a worker has ready: torch's default prefetch_factor, which Megatron-LM does not change. Read.
PREFETCH: Final = 2
FLAG: Final = "--no-create-attention-mask-in-dataloader"


@dataclass(frozen=True)
class Loading:
    """The data loading of a host: `workers` per rank, 0 = the rank itself; `ranks` of the host that load.

    Each context-parallel rank loads the whole sample. One rank of a tensor-parallel group loads.
    """

    sequence: int
    workers: int
    ranks: int
    micro_batch: int = 1

    @property
    def loaders(self) -> int:
        """Return the processes of the host that make samples."""
        return self.ranks * max(self.workers, 1)

    @property
    def ready(self) -> int:
        """Return the batches of one rank that lie in /dev/shm at once: those fetched ahead, and the one in use."""
        return PREFETCH * self.workers + 1 if self.workers else 0


@dataclass(frozen=True)
class Need:
    """In bytes. `worker` is the peak of one process, `first` that of the host while every process makes its first
    sample, `steady` what the host holds from then on, `shm` the part of it in /dev/shm.
    """

    worker: int
    first: int
    steady: int
    shm: int

    @property
    def host(self) -> int:
        """Return the host's peak."""
        return max(self.first, self.steady)


def need(loading: Loading) -> Need:
    """Return the memory that the mask takes, without the processes' own code and the model."""
    pairs = loading.sequence**2
    return Need(*(factor * pairs for factor in factors(loading)))


def factors(loading: Loading) -> tuple[int, int, int, int]:
    """Return the bytes per token pair of worker, first, steady and shm."""
    shm = loading.ranks * loading.ready * loading.micro_batch
    pinned = loading.ranks * loading.micro_batch  # Megatron-LM's loader pins the batch in use; read
    collated = 0 if loading.workers else loading.ranks * loading.micro_batch
    return PEAK, PEAK * loading.loaders, KEPT * loading.loaders + shm + pinned + collated, shm


def without_mask(loading: Loading) -> Need:
    """Return the memory that loading takes with FLAG, without masks."""
    worker = REST_PEAK * loading.sequence
    batch = REST * loading.sequence * loading.micro_batch
    shm = loading.ranks * loading.ready * batch
    first = loading.loaders * loading.micro_batch * worker
    return Need(worker, first, first + shm + loading.ranks * batch, shm)


@dataclass(frozen=True)
class Limit:
    """The longest sequence, in tokens, that one resource allows, and which it is."""

    sequence: int
    resource: str


def longest(loading: Loading, host: int | None, shm: int | None) -> Limit | None:
    """Return the longest sequence that fits into `host` bytes of memory and `shm` bytes of /dev/shm, None = unknown.

    The length of `loading` does not matter.
    """
    _, first, steady, shared = factors(loading)
    limits = []
    if host is not None:
        limits.append(Limit(isqrt(host // max(first, steady)), "host memory"))
    if shm is not None and shared:
        limits.append(Limit(isqrt(shm // shared), "/dev/shm"))
    return min(limits, key=lambda limit: limit.sequence, default=None)


def shown(bytes_: float) -> str:
    """Return a size with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if bytes_ < 1024:
            return f"{bytes_:.4g} {unit}"
        bytes_ /= 1024
    return f"{bytes_:.4g} TiB"
