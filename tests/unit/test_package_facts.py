from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.ground.catalog.distributions import FOLDER, IndexedRelease, Package, read_distributions
from matrix.ground.catalog.schema import VersionText
from tests.package_facts import (
    MARK,
    MINIMUMS,
    changes,
    contradictions,
    links,
    main,
    matrix_of,
    minimums,
    recorded_of,
    unlike_minimums,
    windows,
    written,
)
from tests.unit.catalogs import real

FILES = (
    "torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl",
    "torch-2.9.1-cp313-cp313-manylinux_2_28_aarch64.whl",
    "torch-2.9.1-cp312-none-macosx_11_0_arm64.whl",
    "torch-2.9.1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl",
    "torch-2.9.1-cp314-cp314t-manylinux_2_28_x86_64.whl",
    "torch-2.10.0rc1-cp312-cp312-manylinux_2_28_x86_64.whl",
    "torch-2.0.0.tar.gz",
    "torch-2.9.1%2Bcpu-cp312-cp312-linux_x86_64.whl",
)
PRINTED = "\n".join(f"  link: https://host.example/{name} (from https://i/) (requires-python:>=3.10)" for name in FILES)
METADATA = "Metadata-Version: 2.4\nName: torch\nRequires-Dist: triton==3.5.1\nRequires-Dist: sympy>=1.13\n"


def test_files_of_linux_become_a_release() -> None:
    package = Package("torch", oldest="2.1.0", keep=("triton", "nvidia-*"))
    (release,) = recorded_of(package, links(PRINTED), lambda url: METADATA)
    assert release == IndexedRelease(
        "torch",
        VersionText("2.9.1"),
        wheel=True,
        pythons=("3.12", "3.13"),
        machines=("aarch64", "x86_64"),
        requires_python=">=3.10",
        requires=("triton==3.5.1",),
    )


def test_changes_are_new_gone_and_different() -> None:
    old = [IndexedRelease("a", VersionText("1"), wheel=True), IndexedRelease("a", VersionText("2"), sdist=True)]
    new = [IndexedRelease("a", VersionText("2"), wheel=True), IndexedRelease("a", VersionText("3"), wheel=True)]
    assert [line.partition(":")[0] for line in changes(old, new)] == ["gone", "different", "new"]


def test_written_table_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "distributions.toml"
    text = (FOLDER / "distributions.toml").read_text()
    path.write_text(written(text, read_distributions().release))
    assert path.read_text() == text
    assert read_distributions(path) == read_distributions()
    assert text.count(MARK) == 1


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone with two tags: their windows end at 2.8.3 and 2.9.0, their READMEs state cuDNN 9.3 and 9.9."""
    folder = tmp_path / "clone"
    file = folder / "transformer_engine/pytorch/attention/dot_product_attention/utils.py"
    file.parent.mkdir(parents=True)
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for tag, newest, cudnn in (("v2.17", "2.8.3", "9.3"), ("v2.18", "2.9.0", "9.9")):
        file.write_text(f'    max_version = PkgVersion("{newest}")\n')
        (folder / "README.rst").write_text(f"  * CUDA: 12.1+ (Ampere), 12.8+ (Blackwell)\n  * cuDNN: {cudnn}+\n")
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", tag], check=True)
        subprocess.run([*git, "tag", tag], check=True)
    return folder


def test_window_of_a_tag_contradicts_the_rules(clone: Path) -> None:
    stated = dict(windows(str(clone), ("v2.17", "v2.18")))
    assert stated == {"v2.17": "2.8.3", "v2.18": "2.9.0"}
    (difference,) = contradictions(real().failures, stated.items())
    assert difference.startswith("v2.18: the window ends at 2.9.0")


def test_minimum_of_a_tag_contradicts_the_rules(clone: Path) -> None:
    stated = list(minimums(str(clone), ("v2.17", "v2.18")))
    assert stated[1:] == [("v2.17", "cuda", "12.8"), ("v2.18", "cudnn", "9.9"), ("v2.18", "cuda", "12.8")]
    (difference,) = unlike_minimums(real().failures, stated)
    assert difference == "v2.18: cudnn 9.9 or later; catalog: <9.3"


@pytest.mark.parametrize("line", ["* cuDNN 9.3 or later", "  * cuDNN: 9.3+"])
def test_forms_of_a_stated_minimum(line: str) -> None:
    assert MINIMUMS["cudnn"].findall(f"Software:\n{line}\n") == ["9.3"]


def test_tag_that_contradicts_the_catalog_ends_with_1(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tags", f"transformer-engine={clone}"]) == 1
    assert "2 tags read" in capsys.readouterr().out


def test_versions_of_a_workflow() -> None:
    text = """
          python-version: ['3.9', '3.10']
          torch-version: ['2.8.0']
          cuda-version: ${{ inputs.cuda }}
              "cuda-version": ["12.9.1"],
    """
    assert matrix_of(text) == {"python": ["3.9", "3.10"], "torch": ["2.8.0"], "cuda": ["12.9.1"]}


def test_recorded_versions_are_sorted() -> None:
    for package, releases in read_distributions().by_package.items():
        assert [*releases] == sorted(releases, key=Version), package
