"""The walk of CONTRIBUTING.md: a log becomes an entry that is red in both directions when its expectations are swapped.

It takes half a minute where the base is made.
"""

from pathlib import Path

from matrix.prove.provision.project import ROOT
from tests.unit.test_tutorial import run_page


def test_first_entry_from_log_to_verified(tmp_path: Path) -> None:
    run_page(ROOT / "CONTRIBUTING.md", tmp_path)
