"""Read a side of the contract from a wheel, a folder or a revision of a clone."""

import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from matrix.contract import reading
from matrix.contract.comparison import find
from matrix.contract.definition import LARGEST
from matrix.contract.provider import TRANSFORMER_ENGINE
from matrix.errors import MatrixError
from tests.unit.contract.sources import ROOT, UTILS

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
    found = find(reading.calls_of(str(megatron)), reading.surface_of(str(engine)))
    assert [f.call_site.path for f in found] == ["megatron/core/adapter.py", "megatron/training/initialize.py"]
    (megatron / "megatron/core/adapter.py").write_text(ADAPTER.replace("1, 2", "1"))
    found = find(reading.calls_of(str(megatron)), reading.surface_of(str(engine)))
    assert [f.call_site.path for f in found] == ["megatron/training/initialize.py"]


def test_revision_is_read_without_a_checkout(megatron: Path, tmp_path: Path) -> None:
    head = commit(megatron)
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "-q", "--bare", str(megatron), str(bare))
    shutil.rmtree(megatron)
    calls = reading.calls_of(f"{bare}@{head}")
    assert calls.version == f"0.9.0rc0+{head[:7]}"
    assert calls.origin == {"commit": head}
    assert [use.site.line for use in calls.uses if use.kind == "call"] == [3, 3]


def test_wheel_is_read_without_unpacking(engine: Path, tmp_path: Path) -> None:
    path = wheel(tmp_path, "transformer_engine_cu12", "2.3.0", engine)
    surface = reading.surface_of(str(path))
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


def test_wheel_of_another_package_is_rejected(tmp_path: Path) -> None:
    path = wheel(tmp_path, "requests", "2.0")
    with pytest.raises(MatrixError, match="not of transformer-engine"):
        reading.surface_of(str(path))


def test_wheel_without_python_is_rejected_with_a_fix(tmp_path: Path) -> None:
    path = wheel(tmp_path, "transformer_engine", "1.9.0")
    with pytest.raises(MatrixError, match="the source has no Python files of the package") as error:
        reading.surface_of(str(path))
    assert "transformer_engine_cu12" in str(error.value)


def test_folder_without_megatron_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="this is no Megatron-LM"):
        reading.calls_of(f"{tmp_path}/")


def test_unparsable_file_is_rejected_with_its_name(megatron: Path) -> None:
    (megatron / "megatron/core/adapter.py").write_text("import transformer_engine\ndef broken(:\n")
    with pytest.raises(MatrixError, match=r"can't parse a source file.*\n.*adapter\.py"):
        reading.calls_of(str(megatron))


@pytest.mark.filterwarnings("error")
def test_syntax_warnings_in_sources_are_ignored(megatron: Path, engine: Path) -> None:
    (megatron / "megatron/core/adapter.py").write_text('"""a\\i"""\n' + ADAPTER)
    (engine / "transformer_engine/pytorch/__init__.py").write_text('"""a\\i"""\ndef get(a): ...\n')
    assert len(find(reading.calls_of(str(megatron)), reading.surface_of(str(engine)))) == 2


def test_recorded_file_is_a_side_too(tmp_path: Path, engine: Path) -> None:
    from matrix.contract import recording

    recording.write(reading.surface_of(str(engine)), tmp_path / "mine.json.gz")
    assert reading.surface_of(str(tmp_path / "mine.json.gz")).offers("transformer_engine.pytorch:get") is True


def test_unrecorded_name_is_rejected() -> None:
    with pytest.raises(MatrixError, match="no recorded megatron-core"):
        reading.calls_of("core_v99")


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
        reading.calls_of_project(str(tmp_path), TRANSFORMER_ENGINE)


def test_long_chain_of_imports_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, {f"m{n}.py": f"# transformer_engine\nfrom m{n + 1} import Linear\n" for n in range(400)})
    with pytest.raises(MatrixError, match=r"m\d+\.py: nested too deeply, or too long a chain"):
        reading.calls_of_project(str(tmp_path), TRANSFORMER_ENGINE)


@pytest.mark.parametrize(("make", "got"), [(os.mkfifo, "a FIFO"), (huge, "a file of 104,857,600 bytes")])
def test_hostile_file_is_refused(tmp_path: Path, make: Callable[[Path], object], got: str) -> None:
    make(tmp_path / "x.py")
    with pytest.raises(MatrixError, match=rf"x\.py: the file can't be read\n  got:      {got}"):
        reading.calls_of_project(str(tmp_path), TRANSFORMER_ENGINE)


def test_fifo_as_wheel_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.whl")
    with pytest.raises(MatrixError, match="a FIFO"):
        reading.calls_of_project(str(tmp_path / "a.whl"), TRANSFORMER_ENGINE)
