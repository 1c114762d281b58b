"""Read a side of the contract from a wheel, a folder or a revision of a clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.read.api import pairs, recording, sides
from matrix.read.api.comparison import find
from matrix.read.api.definition import LARGEST
from matrix.read.api.finding import FindingKind
from matrix.read.api.provider import MEGATRON_CORE, TORCH, TRANSFORMER_ENGINE, provider_of
from tests.unit.read.api.sources import ROOT, UTILS

ADAPTER = "import transformer_engine as te\ndef run():\n    te.pytorch.get(1, 2)\n"
INFO = "MAJOR = 0\nMINOR = 9\nPATCH = 0\nPRE_RELEASE = 'rc0'\n"


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 * 2**20)


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    return tree(
        tmp_path / "Megatron-LM",
        {
            "megatron/core/__init__.py": "",
            "megatron/core/package_info.py": INFO,
            "megatron/core/utils.py": UTILS,
            "megatron/core/adapter.py": ADAPTER,
            "megatron/training/initialize.py": ADAPTER,
            "megatron/legacy/old.py": ADAPTER,
            "setup.py": "raise SystemExit('never run')",
        },
    )


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return tree(
        tmp_path / "TransformerEngine",
        {
            "build_tools/VERSION.txt": "2.3.0\n",
            "transformer_engine/__init__.py": ROOT,
            "transformer_engine/pytorch/__init__.py": "def get(a): ...\n",
        },
    )


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "init", "-q", ".")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")
    return git(folder, "rev-parse", "HEAD")


def test_working_tree_is_read_with_uncommitted_changes(megatron: Path, engine: Path) -> None:
    commit(megatron)
    found = find(sides.calls_of(str(megatron)), sides.surface_of(str(engine)))
    assert [f.call_site.path for f in found] == ["megatron/core/adapter.py", "megatron/training/initialize.py"]
    (megatron / "megatron/core/adapter.py").write_text(ADAPTER.replace("1, 2", "1"))
    found = find(sides.calls_of(str(megatron)), sides.surface_of(str(engine)))
    assert [f.call_site.path for f in found] == ["megatron/training/initialize.py"]


def test_revision_is_read_without_a_checkout(megatron: Path, tmp_path: Path) -> None:
    head = commit(megatron)
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "-q", "--bare", str(megatron), str(bare))
    shutil.rmtree(megatron)
    calls = sides.calls_of(f"{bare}@{head}")
    assert calls.version == f"0.9.0rc0+{head[:7]}"
    assert calls.origin == {"commit": head}
    assert [use.site.line for use in calls.uses if use.kind == "call"] == [3, 3]


def test_wheel_is_read_without_unpacking(engine: Path, tmp_path: Path) -> None:
    path = wheel(tmp_path, "transformer_engine_cu12", "2.3.0", engine)
    surface = sides.surface_of(str(path))
    assert (surface.version, surface.origin) == ("2.3.0", {"wheel": path.name})
    assert surface.offers("transformer_engine.pytorch:get") is True


def wheel(folder: Path, name: str, version: str, root: Path | None = None) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
        if root:
            for file in root.rglob("*.py"):
                archive.write(file, file.relative_to(root).as_posix())
    return path


def test_wheel_of_a_consumer_has_its_name(tmp_path: Path) -> None:
    source = tree(tmp_path / "mbridge", {"mbridge/core.py": "from megatron.core import parallel_state\n"})
    path = wheel(tmp_path, "mbridge", "0.15.1", source)
    calls = sides.calls_of_wheel(str(path), MEGATRON_CORE)
    assert calls is not None
    assert (calls.consumer, calls.version, calls.origin) == ("mbridge", "0.15.1", {"wheel": path.name})
    assert [use.path for use in calls.uses] == ["megatron.core:parallel_state"]
    assert sides.calls_of_wheel(str(path), TORCH) is None
    assert sides.calls_of_wheel(str(source), MEGATRON_CORE) is None


def test_folder_named_as_a_package_is_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree(tmp_path / "mbridge", {"a.py": "from megatron.core import parallel_state\n"})
    (calls,) = sides.consumers_of("mbridge", MEGATRON_CORE)
    assert calls.version == "mbridge"
    (recorded,) = sides.consumers_of("mbridge==0.15.1", MEGATRON_CORE)
    assert len(recorded.uses) > 400


def test_wheel_of_another_package_is_rejected(tmp_path: Path) -> None:
    path = wheel(tmp_path, "requests", "2.0")
    with pytest.raises(MatrixError, match="not of transformer-engine"):
        sides.surface_of(str(path))


def test_wheel_without_python_is_rejected_with_a_fix(tmp_path: Path) -> None:
    path = wheel(tmp_path, "transformer_engine", "1.9.0")
    with pytest.raises(MatrixError, match="the source has no Python files of the package") as error:
        sides.surface_of(str(path))
    assert "transformer_engine_cu12" in str(error.value)


def test_folder_without_megatron_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="this is no Megatron-LM"):
        sides.calls_of(f"{tmp_path}/")


def test_unparsable_file_is_rejected_with_its_name(megatron: Path) -> None:
    (megatron / "megatron/core/adapter.py").write_text("import transformer_engine\ndef broken(:\n")
    with pytest.raises(MatrixError, match=r"can't parse a source file.*\n.*adapter\.py"):
        sides.calls_of(str(megatron))


@pytest.mark.filterwarnings("error")
def test_syntax_warnings_in_sources_are_ignored(megatron: Path, engine: Path) -> None:
    (megatron / "megatron/core/adapter.py").write_text('"""a\\i"""\n' + ADAPTER)
    (engine / "transformer_engine/pytorch/__init__.py").write_text('"""a\\i"""\ndef get(a): ...\n')
    assert len(find(sides.calls_of(str(megatron)), sides.surface_of(str(engine)))) == 2


def test_recorded_file_is_a_side_too(tmp_path: Path, engine: Path) -> None:
    from matrix.read.api import recording

    recording.write(sides.surface_of(str(engine)), tmp_path / "mine.json.gz")
    assert sides.surface_of(str(tmp_path / "mine.json.gz")).offers("transformer_engine.pytorch:get") is True


def test_unrecorded_name_is_rejected() -> None:
    with pytest.raises(MatrixError, match="no recorded megatron-core"):
        sides.calls_of("core_v99")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = " + "+".join(["1"] * 4_000), "nested too deeply"),
        ("if a == 0: pass\n" + "".join(f"elif a == {n}: pass\n" for n in range(3_000)), "nested too deeply"),
        ("f" + "()" * 400, "nested too deeply"),
        ("x = a" + ".b" * 4_000, "nested too deeply"),
        ("x = a" + "[0]" * 4_000, "nested too deeply"),
        ("x = " + "-" * 3_000 + "1", "nested too deeply"),
        ("x = " + "lambda: " * 3_000 + "1", "nested too deeply"),
        ("x = " + "1 if a else " * 1_500 + "2", "nested too deeply"),
        ("x = " + " and ".join(["a"] * 20_000), "20,000 operands"),
        ("x = " + "(" * 5_000 + ")" * 5_000, "can't parse"),
        ("x = 1\0", "can't parse"),
        ("#" * (LARGEST + 1), "too large"),
        (
            "".join(f"def f{n}(x):\n return f{n + 1}(x) if te.v > '{n}' else 1\n" for n in range(1_500)) + "f0(1)",
            "chain",
        ),
    ],
    ids="terms elif calls attributes subscripts unary lambdas ternaries and parentheses nul large functions".split(),  # noqa: SIM905
)
def test_hostile_source_is_refused_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    tree(tmp_path, {"x.py": f"import transformer_engine as te\n{text}\n"})
    with pytest.raises(MatrixError, match=rf"x\.py(?s:.*){message}"):
        sides.calls_of_project(str(tmp_path), TRANSFORMER_ENGINE)


def test_long_chain_of_imports_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, {f"m{n}.py": f"# transformer_engine\nfrom m{n + 1} import Linear\n" for n in range(400)})
    with pytest.raises(MatrixError, match=r"m\d+\.py: nested too deeply, or too long a chain"):
        sides.calls_of_project(str(tmp_path), TRANSFORMER_ENGINE)


@pytest.mark.parametrize(("make", "got"), [(os.mkfifo, "a FIFO"), (huge, "a file of 104,857,600 bytes")])
def test_hostile_file_is_refused(tmp_path: Path, make: Callable[[Path], object], got: str) -> None:
    make(tmp_path / "x.py")
    with pytest.raises(MatrixError, match=rf"x\.py: the file can't be read\n  got:      {got}"):
        sides.calls_of_project(str(tmp_path), TRANSFORMER_ENGINE)


def test_fifo_as_wheel_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.whl")
    with pytest.raises(MatrixError, match="a FIFO"):
        sides.calls_of_project(str(tmp_path / "a.whl"), TRANSFORMER_ENGINE)


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
    target = sides.target_of(text)

    assert (target.provider, target.versions[0], target.versions[-1], target.chosen) == (provider, first, last, chosen)


def test_withdrawn_release_must_be_named() -> None:
    assert "0.18.1" not in sides.target_of("megatron-core>=0.18").versions
    assert sides.target_of("megatron-core==0.18.1").versions == ("0.18.1",)


@pytest.mark.parametrize("text", ["numpy", "megatron-core>=9", "==1.0", "megatron-core=="])
def test_other_text_is_an_error(text: str) -> None:
    with pytest.raises(MatrixError):
        sides.target_of(text)


def test_provider_is_read_from_a_source(tmp_path: Path) -> None:
    files = {
        "megatron/core/__init__.py": "",
        "megatron/core/package_info.py": "MAJOR = 0\nMINOR = 20\nPATCH = 0\nPRE_RELEASE = 'rc0'\n",
        "megatron/core/parallel_state.py": "def initialize_model_parallel(gone): ...\n",
    }
    fork = tree(tmp_path / "fork", {"train.py": USE})
    target = sides.target_of(f"megatron-core={tree(tmp_path / 'Megatron-LM', files)}")

    calls = sides.consumers_of(str(fork), target.provider)

    assert pairs.findings(calls, target.provider, target.surfaces()) == []
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
    found = pairs.findings([calls], TORCH, [surface])
    reached = [one.callee for one in found if one.kind is FindingKind.DEFINITE and not one.masked]
    assert (callee in reached) is is_reached


def test_project_is_folder_revision_or_wheel(tmp_path: Path) -> None:
    fork = tree(tmp_path / "fork", {"src/pkg/train.py": USE, "venv/x.py": "broken(", ".git2/x.py": "broken("})
    wheel = tmp_path / "fork-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("pkg/train.py", USE)
    commit(fork)

    for text in (str(fork), f"{fork}@HEAD", str(wheel)):
        target = sides.target_of("megatron-core==0.16.1")
        found = pairs.findings(sides.consumers_of(text, MEGATRON_CORE), MEGATRON_CORE, target.surfaces())
        assert [one.message for one in found] == [
            "initialize_model_parallel() got an unexpected keyword argument 'gone'"
        ]


def test_own_copy_of_the_provider_is_left_out(tmp_path: Path) -> None:
    """A fork of Megatron-LM is held against other releases of megatron-core."""
    fork = tree(tmp_path / "fork", {"megatron/core/parallel_state.py": "", "train.py": USE})

    calls = sides.consumers_of(str(fork), MEGATRON_CORE)[0]

    assert {use.site.path for use in calls.uses} == {"train.py"}
    assert "megatron.core:parallel_state" in {use.path for use in calls.uses}


def test_project_without_uses_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="nothing in this project uses torch"):
        sides.consumers_of(str(tree(tmp_path / "fork", {"a.py": "x = 1\n"})), TORCH)


def test_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"a\.py:2"):
        sides.consumers_of(str(tree(tmp_path / "fork", {"a.py": "import torch\nx = (\n"})), TORCH)


def test_project_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="no such"):
        sides.consumers_of(str(tmp_path / "none"), TORCH)


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

    targets = sides.declared_targets(str(tmp_path / "project.whl"))

    assert {target.provider.package: target.chosen for target in targets} == texts


def test_project_is_not_its_own_provider(tmp_path: Path) -> None:
    """nvidia-modelopt requires nvidia-modelopt[hf] for its extra `all`."""
    extras = "[project.optional-dependencies]\nall = ['nvidia-modelopt[hf]']\n"
    own = {"modelopt/torch/opt/a.py": "", "modelopt/onnx/b.py": "import modelopt\nimport torch\n"}
    root = tree(tmp_path, own)
    (root / "pyproject.toml").write_text(f"[project]\nname = 'nvidia_modelopt'\ndependencies = ['torch']\n{extras}")

    assert [target.provider for target in sides.declared_targets(str(root))] == [TORCH]


def test_recorded_consumer_has_its_providers() -> None:
    assert [target.provider for target in sides.declared_targets("transformer-engine==2.6.0")] == [TORCH]
    assert [target.provider for target in sides.declared_targets("megatron-core")] == [TRANSFORMER_ENGINE, TORCH]


def test_broken_metadata_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['torch >< 2']\n")
    with pytest.raises(MatrixError, match="not a requirement"):
        sides.declared_targets(str(tmp_path))

    (tmp_path / "pyproject.toml").write_text("[project]\noptional-dependencies = ['torch']\n")
    with pytest.raises(MatrixError, match="project"):
        sides.declared_targets(str(tmp_path))


def test_project_is_tested_with_the_oldest_release(tmp_path: Path) -> None:
    """megatron-core 0.13 made True of is_pipeline_first_stage's default of ignore_virtual."""
    use = "from megatron.core import parallel_state\nparallel_state.is_pipeline_first_stage()\n"
    target = sides.target_of("megatron-core>=0.12,<0.14")
    calls = sides.consumers_of(str(tree(tmp_path, {"train.py": use})), target.provider)

    findings = pairs.findings(calls, target.provider, target.surfaces())

    assert {(finding.kind, finding.provider) for finding in findings} == {
        (FindingKind.CHANGED, "0.13.0"),
        (FindingKind.CHANGED, "0.13.1"),
    }


def test_recorded_consumer_is_tested_with_its_contemporary() -> None:
    """megatron-core 0.6.0 appeared with TE 1.5, where offload_weights was True."""
    calls = sides.consumers_of("megatron-core==0.6.0", TRANSFORMER_ENGINE)
    surfaces = sides.target_of("transformer-engine").surfaces()

    findings = pairs.findings(calls, TRANSFORMER_ENGINE, surfaces)

    versions = [finding.provider for finding in findings if finding.kind is FindingKind.CHANGED]
    assert versions[0] == "2.3.0"


def test_provider_without_days_has_no_changed_defaults() -> None:
    """No megatron-core was tested with the oldest triton, 2.0, which is the first of its records alone."""
    calls = sides.consumers_of("megatron-core==0.19.2", TRITON)
    found = pairs.findings(calls, TRITON, sides.target_of("triton>=3").surfaces())

    assert {finding.callee for finding in found} == {"triton.language.range"}
    assert FindingKind.CHANGED not in {finding.kind for finding in found}


@pytest.mark.parametrize("kind", ["folder", "revision", "core"])
def test_too_many_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """One blob of 250 MB that a tree names 200 times is 0.3 MB in a clone, and took 7.5 GB of memory."""
    monkeypatch.setattr(sides, "LARGEST_CONTENT", 1_000)
    names = (f"megatron/core/{number}.py" for number in range(3))
    root = tree(tmp_path, {**dict.fromkeys(names, "#" * 500), "megatron/core/package_info.py": INFO})
    if kind == "revision":
        for words in (("init", "-q"), ("add", "-A"), ("-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c")):
            subprocess.run(["git", *words], cwd=root, check=True)

    text = f"{root}@HEAD" if kind == "revision" else str(root)
    with pytest.raises(MatrixError, match="too many bytes"):
        sides.calls_of(text) if kind == "core" else sides.calls_of_project(text, TRANSFORMER_ENGINE)
