"""Releases of a provider from text, and projects as consumers."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from matrix.contract import against, recording
from matrix.contract.finding import FindingKind
from matrix.contract.provider import MEGATRON_CORE, TORCH, TRANSFORMER_ENGINE, provider_of
from matrix.errors import MatrixError
from tests.unit.contract.test_reading import commit, tree

TRITON = provider_of("triton")
USE = "from megatron.core import parallel_state\nparallel_state.initialize_model_parallel(gone=1)\n"


@pytest.mark.parametrize(
    ("text", "provider", "first", "last", "chosen"),
    [
        ("megatron-core", MEGATRON_CORE, "0.4.0", "0.19.2", False),
        ("megatron_core>=0.16,<0.18", MEGATRON_CORE, "0.16.0", "0.17.1", True),
        ("torch==2.6.0", TORCH, "2.6.0", "2.6.0", True),
        ("transformer-engine<2", TRANSFORMER_ENGINE, "1.0.0", "1.13.0", True),
    ],
)
def test_range_selects_recorded_releases(text: str, provider: object, first: str, last: str, chosen: bool) -> None:
    target = against.parse(text)

    assert (target.provider, target.versions[0], target.versions[-1], target.chosen) == (provider, first, last, chosen)


def test_withdrawn_release_must_be_named() -> None:
    assert "0.18.1" not in against.parse("megatron-core>=0.18").versions
    assert against.parse("megatron-core==0.18.1").versions == ("0.18.1",)


@pytest.mark.parametrize("text", ["numpy", "megatron-core>=9", "==1.0", "megatron-core=="])
def test_other_text_is_an_error(text: str) -> None:
    with pytest.raises(MatrixError):
        against.parse(text)


def test_provider_is_read_from_a_source(tmp_path: Path) -> None:
    files = {
        "megatron/core/__init__.py": "",
        "megatron/core/package_info.py": "MAJOR = 0\nMINOR = 20\nPATCH = 0\nPRE_RELEASE = 'rc0'\n",
        "megatron/core/parallel_state.py": "def initialize_model_parallel(gone): ...\n",
    }
    fork = tree(tmp_path / "fork", {"train.py": USE})
    target = against.parse(f"megatron-core={tree(tmp_path / 'Megatron-LM', files)}")

    calls = against.consumers(str(fork), target.provider)

    assert against.findings(calls, target.provider, target.surfaces()) == []
    assert target.chosen


@pytest.mark.parametrize(
    ("mcore", "torch", "callee", "is_reached"),
    [
        ("0.15.3", "2.0.1", "torch.distributed._coalescing_manager", True),
        ("0.15.3", "2.0.1", "torch.distributed.new_group", False),
        ("0.15.3", "2.4.1", "torch.distributed.tensor.DTensor", True),
        ("0.19.2", "2.2.2", "torch.distributed.checkpoint.save", False),
        ("0.19.2", "2.2.2", "torch.distributed.DeviceMesh", True),
        ("0.15.3", "2.2.2", "torch.distributed.checkpoint.load", True),
        ("0.15.3", "2.4.1", "torch.distributed.device_mesh._mesh_resources.child_to_root_mapping.items", False),
        ("0.15.0", "2.10.0", "torch.distributed.device_mesh._mesh_resources.child_to_root_mapping.items", True),
    ],
)
def test_failed_import_of_a_package_comes_first(mcore: str, torch: str, callee: str, is_reached: bool) -> None:
    """With torch 2.0.1 megatron.core is not imported, nor 0.19 with 2.2.2; with 2.4.1 the FSDP of 0.15 is not."""
    calls, surface = recording.recorded_calls(TORCH, mcore), recording.recorded_surface(TORCH, torch)
    found = against.findings([calls], TORCH, [surface])
    reached = [one.callee for one in found if one.kind is FindingKind.DEFINITE and not one.masked]
    assert (callee in reached) is is_reached


def test_project_is_folder_revision_or_wheel(tmp_path: Path) -> None:
    fork = tree(tmp_path / "fork", {"src/pkg/train.py": USE, "venv/x.py": "broken(", ".git2/x.py": "broken("})
    wheel = tmp_path / "fork-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("pkg/train.py", USE)
    commit(fork)

    for text in (str(fork), f"{fork}@HEAD", str(wheel)):
        target = against.parse("megatron-core==0.16.1")
        found = against.findings(against.consumers(text, MEGATRON_CORE), MEGATRON_CORE, target.surfaces())
        assert [one.message for one in found] == [
            "initialize_model_parallel() got an unexpected keyword argument 'gone'"
        ]


def test_own_copy_of_the_provider_is_left_out(tmp_path: Path) -> None:
    """A fork of Megatron-LM is held against other releases of megatron-core."""
    fork = tree(tmp_path / "fork", {"megatron/core/parallel_state.py": "", "train.py": USE})

    calls = against.consumers(str(fork), MEGATRON_CORE)[0]

    assert {use.site.path for use in calls.uses} == {"train.py"}
    assert "megatron.core:parallel_state" in {use.path for use in calls.uses}


def test_project_without_uses_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="nothing in this project uses torch"):
        against.consumers(str(tree(tmp_path / "fork", {"a.py": "x = 1\n"})), TORCH)


def test_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"a\.py:2"):
        against.consumers(str(tree(tmp_path / "fork", {"a.py": "import torch\nx = (\n"})), TORCH)


def test_project_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="no such"):
        against.consumers(str(tmp_path / "none"), TORCH)


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        ([], {"megatron-core": False}),
        (["numpy"], {"megatron-core": False}),
        (["torch>=2.6.0", 'torch==2.12.0+cu126; extra == "cuda"'], {"torch": True}),
        (['megatron-core==0.17.0; python_full_version >= "3.12" and extra == "a"'], {"megatron-core": True}),
        (["torch==9.0"], {"torch": False}),
        (["torch==2.6.0", "flash-attn>=2", 'project[a]; extra == "all"'], {"torch": True}),
        (["flash-attn>=2"], {"megatron-core": False}),
    ],
)
def test_wheel_declares_the_releases(lines: list[str], texts: dict[str, bool], tmp_path: Path) -> None:
    """A range without a recorded release selects all of them; a package that no file mentions has no part."""
    headers = [
        "Name: project",
        *(f"Requires-Dist: {line}" for line in lines),
        "Provides-Extra: a",
        "Provides-Extra: cuda",
    ]
    with zipfile.ZipFile(tmp_path / "project.whl", "w") as wheel:
        wheel.writestr("project-1.dist-info/METADATA", "\n".join(headers) + "\n\nRequires-Dist: numpy\n")
        wheel.writestr("project/train.py", f"import torch\n{USE}")

    targets = against.default(str(tmp_path / "project.whl"))

    assert {target.provider.package: target.chosen for target in targets} == texts


def test_project_is_not_its_own_provider(tmp_path: Path) -> None:
    """nvidia-modelopt requires nvidia-modelopt[hf] for its extra `all`."""
    extras = "[project.optional-dependencies]\nall = ['nvidia-modelopt[hf]']\n"
    own = {"modelopt/torch/opt/a.py": "", "modelopt/onnx/b.py": "import modelopt\nimport torch\n"}
    root = tree(tmp_path, own)
    (root / "pyproject.toml").write_text(f"[project]\nname = 'nvidia_modelopt'\ndependencies = ['torch']\n{extras}")

    assert [target.provider for target in against.default(str(root))] == [TORCH]


def test_recorded_consumer_has_its_providers() -> None:
    assert [target.provider for target in against.default("transformer-engine==2.6.0")] == [TORCH]
    assert [target.provider for target in against.default("megatron-core")] == [TRANSFORMER_ENGINE, TORCH]


def test_broken_metadata_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['torch >< 2']\n")
    with pytest.raises(MatrixError, match="not a requirement"):
        against.default(str(tmp_path))

    (tmp_path / "pyproject.toml").write_text("[project]\noptional-dependencies = ['torch']\n")
    with pytest.raises(MatrixError, match="project"):
        against.default(str(tmp_path))


def test_project_is_tested_with_the_oldest_release(tmp_path: Path) -> None:
    """megatron-core 0.13 made True of is_pipeline_first_stage's default of ignore_virtual."""
    use = "from megatron.core import parallel_state\nparallel_state.is_pipeline_first_stage()\n"
    target = against.parse("megatron-core>=0.12,<0.14")
    calls = against.consumers(str(tree(tmp_path, {"train.py": use})), target.provider)

    findings = against.findings(calls, target.provider, target.surfaces())

    assert {(finding.kind, finding.provider) for finding in findings} == {
        (FindingKind.CHANGED, "0.13.0"),
        (FindingKind.CHANGED, "0.13.1"),
    }


def test_recorded_consumer_is_tested_with_its_contemporary() -> None:
    """megatron-core 0.6.0 appeared with TE 1.5, where offload_weights was True."""
    calls = against.consumers("megatron-core==0.6.0", TRANSFORMER_ENGINE)
    surfaces = against.parse("transformer-engine").surfaces()

    findings = against.findings(calls, TRANSFORMER_ENGINE, surfaces)

    versions = [finding.provider for finding in findings if finding.kind is FindingKind.CHANGED]
    assert versions[0] == "2.3.0"


def test_provider_without_days_has_no_changed_defaults() -> None:
    """No megatron-core was tested with the oldest triton, 2.0, which is the first of its records alone."""
    calls = against.consumers("megatron-core==0.19.2", TRITON)
    found = against.findings(calls, TRITON, against.parse("triton>=3").surfaces())

    assert {finding.callee for finding in found} == {"triton.language.range"}
    assert FindingKind.CHANGED not in {finding.kind for finding in found}
