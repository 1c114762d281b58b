"""Read for each release of Transformer Engine to which cuDNN, SM and padding it gives no attention.

`python -m tests.te_attention CLONE` reads the tags of a clone and writes te_attention.toml, with which the rules of the
entries are compared: what the library leaves out of cuDNN, in general and on SM120; the first SM on which it gives
packed sequences (thd) to cuDNN; which backends do not take packed sequences with padding between them; and whether
that padding is seen in the values of the offsets, or in another tensor alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).with_name("te_attention.toml")
SOURCE: Final = "transformer_engine/common/fused_attn/fused_attn.cpp"
SELECTIONS: Final = (
    "transformer_engine/pytorch/attention/dot_product_attention/{}.py",
    "transformer_engine/pytorch/dot_product_attention/{}.py",  # 2.2
    "transformer_engine/pytorch/attention.py",  # the whole of it, up to 2.2
)
TAG: Final = re.compile(r"v(2\.\d+(?:\.\d+)?)")
# The condition of the FP16 kernels for any sequence length stands before `flag_arb`; that of others has one version.
ANY_LENGTH: Final = re.compile(r"flag_arb = false;(.*?)flag_arb = true;", re.DOTALL)
LEFT_OUT: Final = re.compile(r"cudnn_runtime_version != (\d+)")
ON_SM120: Final = re.compile(r"sm_arch_ == 120\) \{\s*if \(cudnn_runtime_version < (\d+)\)")

PACKED_SM: Final = re.compile(r"NVTE_THD && sm_arch_ >= (\d+)")
PACKED: Final = re.compile(r"# Filter: QKV layout\n(.*?)\n    # Filter", re.DOTALL)  # of the selection of a backend
WITH_PADDING: Final = re.compile(
    r"if (?:use_flash_attention and )?pad_between_seqs:\n(.*?)(?=\n        if device|\Z)", re.DOTALL
)
OFF: Final = re.compile(r"use_(\w+?)_attention(?:_(\d))? = False")


def version_of(number: str) -> str:
    """Return "9.18.1" for 91801: CUDNN_VERSION of cuDNN 9."""
    return f"{int(number) // 10_000}.{int(number) // 100 % 100}.{int(number) % 100}"


def lists_in(source: str) -> tuple[list[str], str]:
    """Return the versions that are left out, and the first that SM120 is given; "" for no such list."""
    condition, on_sm120 = ANY_LENGTH.search(source), ON_SM120.search(source)
    left_out = LEFT_OUT.findall(condition[1]) if condition else []
    return [version_of(number) for number in left_out], version_of(on_sm120[1]) if on_sm120 else ""


def padding_in(selection: str) -> list[str]:
    """Return the backends that take no packed sequences with padding between them: "flash", "flash 2", "unfused"."""
    packed = PACKED.search(selection)
    with_padding = WITH_PADDING.search(packed[1]) if packed else None
    always = packed[1].partition("pad_between_seqs")[0] if packed else ""
    found = OFF.findall(always + (with_padding[1] if with_padding else ""))
    return sorted({f"{name} {number}".strip() for name, number in found})


def rows(clone: str) -> Iterator[str]:
    """Yield a row for each release of a clone, oldest first."""
    git = ["git", "--git-dir", clone]
    tags = subprocess.run([*git, "tag", "--sort=v:refname"], check=True, capture_output=True, text=True).stdout.split()
    for version in filter(None, map(TAG.fullmatch, tags)):
        library = shown(clone, version[0], SOURCE)
        left_out, sm120 = lists_in(library)
        packed = PACKED_SM.search(library)
        selection, module = (
            next(filter(None, (shown(clone, version[0], path.format(name)) for path in SELECTIONS)))
            for name in ("utils", "dot_product_attention")
        )
        yield "\n".join(
            [
                f'[[release]]\nversion = "{version[1]}"\nleft_out = {json.dumps(left_out)}\nsm120 = "{sm120}"',
                f'packed_sm = "{int(packed[1]) / 10 if packed else ""}"',
                f"padding_off = {json.dumps(padding_in(selection))}",
                f"padding_by_tensor = {json.dumps('cu_seqlens_q_padded is cu_seqlens_q' in module)}\n",
            ]
        )


def shown(clone: str, revision: str, path: str) -> str:
    """Return the text of a file at a revision, "" for none."""
    command = ["git", "--git-dir", clone, "show", f"{revision}:{path}"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


if __name__ == "__main__":
    HEAD = (
        "# Read by tests/te_attention.py: cuDNN that is left out, and the first that a GPU of 12.0 is given; the first",
        "# SM on which packed sequences go to cuDNN; the backends that padding between them turns off, and whether",
        "# other tensors of offsets count as padding whatever their values.\n",
    )
    TABLE.write_text("\n".join([*HEAD, *rows(sys.argv[1])]), encoding="utf-8")
