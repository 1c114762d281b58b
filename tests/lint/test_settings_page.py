"""docs/settings.md has every environment variable of the project, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"\bMEGATRIX_[A-Z][A-Z_]*[A-Z]\b")


def test_page_names_the_variables_in_use() -> None:
    files = [*(ROOT / "matrix").rglob("*.py"), *(ROOT / "docs/ci").iterdir(), ROOT / "toxfile.py", ROOT / "tox.ini"]
    files += [ROOT / "mkdocs.yml", ROOT / "hatch_build.py"]
    used = {name for file in files for name in NAME.findall(file.read_text(encoding="utf-8"))}
    rows = re.findall(r"^\| `(MEGATRIX_\w+)` \|", (ROOT / "docs/settings.md").read_text(encoding="utf-8"), re.M)
    assert sorted(rows) == sorted(used)
