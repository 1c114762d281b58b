"""Import Transformer Engine's attention beside a flash-attn of which there is only a version.

Transformer Engine's Python is real. Its compiled extension, the GPU's capability (9.0), and flash-attn are stand-ins:
of the last there is the metadata that Transformer Engine reads, and a package that can be imported and not used.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder
from typing import TYPE_CHECKING

from matrix.kit import absent_packages, cpu_device, te_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class FlashAttentionIgnoredError(RuntimeError):
    """Transformer Engine logs that it does not use the installed flash-attn; the message is what it logs."""


def import_attention(rank: Rank, *, version: str) -> str:
    """Import the attention beside flash-attn `version` and build FlashAttention; return Transformer Engine's version.

    Raises what Transformer Engine raises, and FlashAttentionIgnoredError where it logs a warning of this flash-attn.
    """
    cpu_device.install()
    cpu_device.claim_gpu()
    te_extension.install(rank.workdir / "te")
    absent_packages.install(["flash_attn_2_cuda"])
    sys.meta_path.insert(0, FlashAttnMetadata(version))
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    import transformer_engine.pytorch as te

    backends = sys.modules.get(te.DotProductAttention.__module__.rpartition(".")[0] + ".backends")
    (backends or sys.modules[te.DotProductAttention.__module__]).FlashAttention(softmax_scale=1.0)
    for text in warnings.texts:
        raise FlashAttentionIgnoredError(text)
    return str(sys.modules["transformer_engine"].__version__)


class FlashAttnMetadata(DistributionFinder):
    """Finder of the metadata of flash-attn in one version."""

    def __init__(self, version: str) -> None:
        self.version = version

    def find_spec(self, *_: object) -> None:
        """Return None: the stand-in for its modules is another finder."""

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:  # type: ignore[override]
        """Yield the metadata where flash-attn is asked for."""
        if context.name == "flash-attn":
            yield FlashAttn(self.version)


class FlashAttn(absent_packages.AbsentDistribution):
    """Metadata with a version."""

    def __init__(self, version: str) -> None:
        super().__init__("flash-attn")
        self.number = version

    def read_text(self, filename: str) -> str | None:
        """Return the content of METADATA, None for any other file."""
        return f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {self.number}\n" if filename == "METADATA" else None


class Warnings(logging.Handler):
    """Collects what is logged about versions of flash-attn."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of a record that names the versions."""
        if "flash-attn versions" in (text := record.getMessage()):
            self.texts.append(text)
