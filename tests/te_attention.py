"""Read for each release of Transformer Engine which cuDNN its library gives no attention to, in general and on SM120.

`python -m tests.te_attention CLONE` reads the tags of a clone and writes te_attention.toml, with which the rules of the
entry are compared.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).with_name("te_attention.toml")
SOURCE: Final = "transformer_engine/common/fused_attn/fused_attn.cpp"
TAG: Final = re.compile(r"v(2\.\d+(?:\.\d+)?)")
# The condition of the FP16 kernels for any sequence length stands before `flag_arb`; that of others has one version.
ANY_LENGTH: Final = re.compile(r"flag_arb = false;(.*?)flag_arb = true;", re.DOTALL)
LEFT_OUT: Final = re.compile(r"cudnn_runtime_version != (\d+)")
ON_SM120: Final = re.compile(r"sm_arch_ == 120\) \{\s*if \(cudnn_runtime_version < (\d+)\)")


def version_of(number: str) -> str:
    """Return "9.18.1" for 91801: CUDNN_VERSION of cuDNN 9."""
    return f"{int(number) // 10_000}.{int(number) // 100 % 100}.{int(number) % 100}"


def lists_in(source: str) -> tuple[list[str], str]:
    """Return the versions that are left out, and the first that SM120 is given; "" for no such list."""
    condition, on_sm120 = ANY_LENGTH.search(source), ON_SM120.search(source)
    left_out = LEFT_OUT.findall(condition[1]) if condition else []
    return [version_of(number) for number in left_out], version_of(on_sm120[1]) if on_sm120 else ""


def rows(clone: str) -> Iterator[str]:
    """Yield a row for each release of a clone, oldest first."""
    git = ["git", "--git-dir", clone]
    tags = subprocess.run([*git, "tag", "--sort=v:refname"], check=True, capture_output=True, text=True).stdout.split()
    for version in filter(None, map(TAG.fullmatch, tags)):
        shown = subprocess.run([*git, "show", f"{version[0]}:{SOURCE}"], check=True, capture_output=True, text=True)
        left_out, sm120 = lists_in(shown.stdout)
        listed = ", ".join(f'"{text}"' for text in left_out)
        yield f'[[release]]\nversion = "{version[1]}"\nleft_out = [{listed}]\nsm120 = "{sm120}"\n'


if __name__ == "__main__":
    HEAD = "# Read by tests/te_attention.py: cuDNN that is left out, and the first that a GPU of 12.0 is given.\n"
    TABLE.write_text("\n".join([HEAD, *rows(sys.argv[1])]), encoding="utf-8")
