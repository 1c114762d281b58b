"""What tests/image_facts.py reads in pages, on short invented texts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.loading import load
from tests import image_facts
from tests.image_facts import Accepted, Fact, Page
from tests.unit.catalogs import catalog, copy_of_facts, image, real

NOTES = """Tensorland Release 31.05
The container also includes the following:
- NVIDIA CUDA 14.4.1
- NVIDIA cuDNN 11.1.0.70
- NVIDIA NCCL 3.21.5 (optimized for NVLink)
- flash-attention 9.7.4.post1
- OpenMPI 6.1.4+
Release 31.05 is based on NVIDIA CUDA 14.4.1, which requires NVIDIA Driver release 945 or later. However, on a data
center GPU, you can use 870.57 (or later R870), or 935.86 (or later R935).
Users should upgrade from R910, which is not forward-compatible with CUDA {about}. Intended for the cuDNN 11 libraries.
"""
NEMO = """# Versions

## NeMo Framework 31.06

| Software Component | Version |
|---|---|
| Megatron Core | 3.1.0 |
| CUDA | 14.4.1 |
| cuDNN | 11.1.0.70-1 |

## NeMo Framework 31.04
CUDA |
14.2.0 |
"""
ENVIRONMENT = (
    "NVIDIA_PYTORCH_VERSION=31.05\nCUDA_VERSION=14.4.1.003\nNV_CUDNN_VERSION=1.1\nCUDNN_VERSION=11.1.0.70+cuda14\n"
)
REQUIRED = 'ENV NVIDIA_REQUIRE_CUDA="cuda>=13.1 brand=tesla,driver>=535,driver<536 brand=grid,driver>=560,driver<561"\n'


def stated(text: str) -> dict[tuple[str, str], str]:
    """Return the facts of a text."""
    return {(fact.image, fact.key): fact.value for fact in image_facts.facts_of(Page("there", text))}


def test_release_notes_state_contents_and_drivers() -> None:
    assert stated(NOTES.format(about="14.4")) == {
        ("ngc-31.05", "cuda"): "14.4.1",
        ("ngc-31.05", "cudnn"): "11.1.0.70",
        ("ngc-31.05", "nccl"): "3.21.5",
        ("ngc-31.05", "flash_attn"): "9.7.4.post1",
        ("ngc-31.05", "driver_requirement"): "945 or later; on data-center GPUs 870.57+ (R870), 935.86+ (R935)",
    }


@pytest.mark.parametrize(("about", "doubt"), [("14.4", ""), ("13.6", "its sentence on drivers is about CUDA 13.6")])
def test_sentence_about_another_cuda_is_doubtful(about: str, doubt: str) -> None:
    facts = image_facts.facts_of(Page("there", NOTES.format(about=about)))
    assert {fact.doubt for fact in facts if fact.key == "driver_requirement"} == {doubt}
    assert all(fact.sibling for fact in facts)


def test_tables_of_nemo_are_read_in_both_forms() -> None:
    assert stated(NEMO) == {
        ("nemo-31.06", "cuda"): "14.4.1",
        ("nemo-31.06", "cudnn"): "11.1.0.70",
        ("nemo-31.06", "megatron_core"): "3.1.0",
        ("nemo-31.04", "cuda"): "14.2.0",
    }


def test_environment_of_an_image_is_read() -> None:
    assert stated(ENVIRONMENT) == {("ngc-31.05", "cuda"): "14.4.1.003", ("ngc-31.05", "cudnn"): "11.1.0.70"}
    (cuda, _) = image_facts.facts_of(Page("there", f"{ENVIRONMENT}CUDA_VERSION=15.0\n"))
    assert cuda.doubt == "several values"


@pytest.mark.parametrize(
    ("key", "value", "doubt", "expected"),
    [
        ("cuda", "14.4.1", "", "same"),
        ("cuda", "14.4.1.003.1", "", "same"),
        ("cuda", "14.4.2", "", "contradicts 14.4.1.003"),
        ("cuda", "14.4.2", "old", "doubtful: old"),
        ("nccl", "3.1", "", "new"),
        ("nccl", "3.1", "old", "doubtful: old"),
    ],
)
def test_standing_of_a_fact(key: str, value: str, doubt: str, expected: str) -> None:
    known_image = replace(image("ngc-31.05", None), cuda="14.4.1.003")
    assert image_facts.standing(Fact("ngc-31.05", key, value, "there", doubt), known_image) == expected


def test_missing_facts_are_listed_for_each_image() -> None:
    images = catalog(containers=(replace(image("ngc-31.05", None), cuda="14.4"),))
    facts = [Fact("ngc-31.05", "nccl", "3.1", "there"), Fact("ngc-31.05", "cudnn", "11.1", "there", "old")]
    assert image_facts.missing(images, facts) == {"ngc-31.05": ["cudnn", "flash_attn", "driver_requirement"]}


def test_list_of_drivers_is_held_against_the_catalog() -> None:
    assert image_facts.accepted_of(Page("there", REQUIRED)) == [Accepted("13.1", ("535", "560"), "there")]
    differences = list(image_facts.disagreements(real(), Accepted("13.1", ("535", "560"), "there")))
    assert differences == [
        "CUDA 13.1, driver 550: not accepted; catalog: compat",
        "CUDA 13.1, driver 560: accepted; catalog: too old",
        "CUDA 13.1, driver 570: not accepted; catalog: compat",
        "CUDA 13.1, driver 575: not accepted; catalog: compat",
    ]


def test_new_facts_are_written_with_their_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts, page = copy_of_facts(tmp_path), tmp_path / "page.txt"
    page.write_text("NVIDIA_PYTORCH_VERSION=26.02\nNCCL_VERSION=9.9.9\nCUDA_VERSION=13.1.1.006.1\n")
    arguments = ["--facts", str(facts), f"https://example.org/a={page}"]
    assert image_facts.main(arguments) == 0
    assert "ngc-26.02: nccl 9.9.9: new (https://example.org/a)" in capsys.readouterr().out
    assert image_facts.main(["--write", *arguments]) == 0
    (after,) = [image for image in load(facts).containers if image.id == "ngc-26.02"]
    assert (after.nccl, after.cuda) == ("9.9.9", "13.1.1.006")
    blocks = (facts / "containers.toml").read_text().split("[[container]]")
    (block,) = (text for text in blocks if '"ngc-26.02"' in text)
    assert re.search(r'^# sources = \[.*, "https://example.org/a"\]$', block, re.MULTILINE)
    assert image_facts.main(arguments) == 0
    assert "nccl 9.9.9: same" in capsys.readouterr().out


def test_contradiction_is_reported_and_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts, page = copy_of_facts(tmp_path), tmp_path / "page.txt"
    page.write_text("NVIDIA_PYTORCH_VERSION=26.09\nCUDA_VERSION=12.1\n")
    before = (facts / "containers.toml").read_text()
    assert image_facts.main(["--write", "--facts", str(facts), f"there={page}"]) == 1
    assert "contradicts 13.4" in capsys.readouterr().out
    assert (facts / "containers.toml").read_text() == before


@pytest.mark.parametrize("argument", ["page.txt", "there=/nonexistent/page.txt"])
def test_page_that_cannot_be_read_is_an_error(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert image_facts.main([argument]) == 2
    assert "fix:" in capsys.readouterr().err


def test_page_without_facts_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.txt").write_text("nothing")
    image_facts.main([f"there={tmp_path / 'page.txt'}"])
    assert "nothing was found in there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ("# sources = []", '# sources = ["there"]'),
        ('# sources = ["a"]', '# sources = ["a", "there"]'),
        ('# source = "a"', '# source = "a; there"'),
        ('# source = "there"', '# source = "there"'),
    ],
)
def test_source_is_added_to_those_of_the_image(sources: str, expected: str) -> None:
    table = f'[[container]]\nid = "a-1"\n{sources}\n\n[[container]]\nid = "a-2"\n# sources = []\n'
    changed = image_facts.written(table, [Fact("a-1", "nccl", "3.1", "there")])
    assert changed == table.replace(f"{sources}\n", f'nccl = "3.1"\n{expected}\n', 1)
