"""Metadata made when a distribution is built: addresses, and the README with absolute links, for a package index.

The owner of the repository is `owner` in pyproject.toml; MEGATRIX_OWNER overrides it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")
IMAGE = re.compile(r"\b(src|srcset)=\"(?![a-z]+:)([^\"]+)\"")


def absolute(readme: str, repository: str) -> str:
    """Return the README with links to the repository: pages as GitHub shows them, images as files."""
    pages = RELATIVE.sub(rf"]({repository}/blob/main/\1)", readme)
    return IMAGE.sub(rf'\1="{repository}/raw/main/\2"', pages)


class Metadata(MetadataHookInterface):
    """The parts of the metadata that name the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `urls` and `readme`."""
        repository = f"https://github.com/{os.environ.get('MEGATRIX_OWNER', self.config['owner'])}/megatrix"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository)}
        metadata["urls"] = {
            "Source": repository,
            "Documentation": f"{repository}/blob/main/docs/README.md",
            "Issues": f"{repository}/issues",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        }
