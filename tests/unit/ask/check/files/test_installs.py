"""What commands of package managers and git install or remove."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import pytest

from matrix.ask.check.files.declared import NEWEST, Declared, total
from matrix.ask.check.files.installs import Installs
from matrix.ask.check.files.shell import read_script
from matrix.ground.catalog.stack import ABSENT, Place

FILES = {
    "uv.lock": '[[package]]\nname = "torch"\nversion = "2.8.0"\n',
    "poetry.lock": '[[package]]\nname = "torch"\nversion = "2.7.0"\n',
    "Pipfile.lock": '{"default": {"torch": {"version": "==2.6.0"}}}',
    "r.txt": "torch==2.5.1",
    "env.yml": "dependencies: [pytorch=2.4.0]",
    "sub/pyproject.toml": '[project]\ndependencies = ["torch==2.3.0"]',
}


def installed(*lines: str, files: Mapping[str, str] = FILES) -> Declared:
    installs = Installs()
    found = [
        installs.read(shlex.split(line), Place("x"), lambda name: (name, files[name]) if name in files else None)
        for line in lines
    ]
    return total(part for part in found if part)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("pip install torch==2.9.1", "2.9.1"),
        ("pip -v install --no-build-isolation torch==2.9.1", "2.9.1"),
        ("python3 -m pip install torch==2.9.1", "2.9.1"),
        ("uv pip install --system torch==2.9.1", "2.9.1"),
        ("uv add torch==2.9.1", "2.9.1"),
        ("uv sync --locked --all-extras", "2.8.0"),
        ("poetry install --only main", "2.7.0"),
        ("pipenv install --deploy", "2.6.0"),
        ("pipenv install torch==2.9.1", "2.9.1"),
        ("uv pip sync r.txt", "2.5.1"),
        ("pip install -r r.txt", "2.5.1"),
        ("pip install ./sub", "2.3.0"),
        ("pip install -e sub/", "2.3.0"),
        ("conda env create -n x -f env.yml", "2.4.0"),
        ("mamba env update --file=env.yml", "2.4.0"),
        ("conda install -c pytorch -y pytorch=2.1.0", "2.1.0"),
    ],
)
def test_version_of_torch(line: str, version: str) -> None:
    assert [pin.version for pin in installed(line).pins if pin.name == "torch"] == [version]


@pytest.mark.parametrize(
    ("line", "files", "versions"),
    [
        ("uv run torchrun train.py", FILES, ["2.8.0"]),
        ("srun uv run --frozen train.py", FILES, ["2.8.0"]),
        ("uv run --no-sync train.py", FILES, []),
        ("uv run train.py", {}, []),
        ("uv run --with torch==2.9.1,numpy train.py", {}, ["2.9.1"]),
        ("uv run --no-project --with=torch==2.9.1 train.py", FILES, ["2.9.1"]),
        ("uv pip run torchrun train.py", FILES, []),
    ],
)
def test_uv_run_installs_before_its_command(line: str, files: Mapping[str, str], versions: list[str]) -> None:
    declared = read_script(line, "a.sh", lambda name: (name, files[name]) if name in files else None)
    assert [pin.version for pin in declared.pins if pin.name == "torch"] == versions
    assert len(declared.commands) == 1


@pytest.mark.parametrize(
    "line", ["pip uninstall -y torch", "python -m pip uninstall torch[x]", "uv pip uninstall torch", "uv remove torch"]
)
def test_removed_package_is_absent(line: str) -> None:
    assert [(pin.name, pin.value) for pin in installed(line).pins] == [("torch", ABSENT)]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("uv sync", "uv.lock"),
        ("pdm sync", "pdm.lock"),
        ("pip install -r gone.txt", "gone.txt"),
        ("pip install .", "pyproject.toml"),
        ("pip install -e .[dev]", "pyproject.toml"),
        ("pip install /opt/megatron", "/opt/megatron/pyproject.toml"),
        ("uv pip install --no-deps -e 3rdparty/Megatron-LM", "3rdparty/Megatron-LM/pyproject.toml"),
        ("conda env create -f gone.yml", "gone.yml"),
        ("pip install /wheels/*.whl", "/wheels/*.whl"),
    ],
)
def test_missing_file_is_named(line: str, name: str) -> None:
    assert [name in unread.text for unread in installed(line, files={}).unread] == [True]


@pytest.mark.parametrize("line", ["conda env create -f broken.yml", "uv sync", "pip install ."])
def test_broken_file_is_named(line: str) -> None:
    files = dict.fromkeys(("broken.yml", "uv.lock", "pyproject.toml"), "{{")
    assert "can't be read" in installed(line, files=files).unread[0].text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("patch /usr/lib/python3/dist-packages/transformer_engine/pytorch/attention.py a.diff", "transformer-engine"),
        ("sed -i s/a/b/ /opt/venv/lib/python3.12/site-packages/megatron/core/utils.py", "megatron-core"),
        ("python3 -m zipfile -e te.whl /usr/local/lib/python3.12/dist-packages", "installed packages"),
        ("unzip te.whl -d $SITE/site-packages/", "installed packages"),
        ("cp -r /tmp/m/. /opt/venv/lib/python3.12/site-packages/", "installed packages"),
        ("""python -c "import os; os.system('pip install torch')\"""", "a program that runs pip"),
    ],
)
def test_changed_packages_are_not_known(line: str, text: str) -> None:
    assert [text in unread.text for unread in installed(line).unread] == [True]


@pytest.mark.parametrize(
    "line",
    [
        "sed s/a/b/ /usr/lib/python3/dist-packages/torch/version.py",
        "cp /usr/lib/python3/dist-packages/torch/lib/libc10.so /usr/lib",
        "patch /usr/lib/python3/dist-packages/ray/worker.py a.diff",
        'python -c "import torch"',
        "pip install torch==2.4.0 --target=/opt/lib/python3.12/site-packages",
    ],
)
def test_reading_packages_changes_nothing(line: str) -> None:
    assert not (installed(line) or Declared()).unread


@pytest.mark.parametrize("words", ["-U torch", "torch --upgrade", "--force-reinstall torch", "-I torch"])
def test_upgrade_replaces_an_installed_version(words: str) -> None:
    assert [pin.limits for pin in installed(f"pip install {words}").pins] == [NEWEST]
    assert installed("pip install -U torch==2.4.0").pins == installed("pip install torch==2.4.0").pins


def test_bare_name_of_a_wheel_is_read() -> None:
    (wheel,) = installed("pip install torch-2.4.0-cp312-cp312-linux_x86_64.whl").pins
    assert (wheel.name, wheel.version) == ("torch", "2.4.0")


@pytest.mark.parametrize("line", ["python setup.py install", "python3 setup.py develop --no-deps"])
def test_setup_script_installs_its_project(line: str) -> None:
    assert "pyproject.toml" in installed(line, files={}).unread[0].text


CLONE = "git clone https://github.com/NVIDIA/Megatron-LM.git"


@pytest.mark.parametrize(
    ("lines", "version", "limits"),
    [
        ((f"{CLONE} --depth 1 -b core_v0.8.0",), "0.8.0", ""),
        ((f"{CLONE} --branch=core_v0.8.0",), "0.8.0", ""),
        ((f"{CLONE} /opt/m", "git checkout core_r0.8.0"), "0.8.0", ""),
        ((CLONE,), "", ""),
        ((f"{CLONE} -b dev",), "", "===dev"),
        ((CLONE, "git checkout 1dcf0da"), "", "===1dcf0da"),
        ((CLONE, "git fetch origin 1dcf0da", "git checkout FETCH_HEAD"), "", "===1dcf0da"),
        ((CLONE, "git clone https://github.com/x/y", "cd Megatron-LM", "git checkout core_v0.8.0"), "0.8.0", ""),
        (("pip install megatron-core@git+https://github.com/NVIDIA/Megatron-LM@1dcf0da",), "", "===1dcf0da"),
        (("pip install git+https://github.com/NVIDIA/Megatron-LM@core_v0.8.0",), "0.8.0", ""),
    ],
)
def test_release_of_a_repository(lines: tuple[str, ...], version: str, limits: str) -> None:
    found = [pin for pin in installed(*lines).pins if pin.name == "megatron-core"][-1]
    assert (found.version, found.limits) == (version, limits)


def test_clone_has_the_name_of_its_package() -> None:
    pins = installed("git clone https://github.com/deepseek-ai/DeepEP.git", "git checkout hybrid-ep").pins
    assert [(pin.name, pin.limits) for pin in pins] == [("deep-ep", ""), ("deep-ep", "===hybrid-ep")]


@pytest.mark.parametrize(
    "lines",
    [
        (CLONE, "cd Megatron-LM", "pip install -e ."),
        (CLONE, "pip install ./Megatron-LM"),
        (f"{CLONE} /opt/m", "pip install --no-deps /opt/m"),
        (CLONE, "pushd Megatron-LM/megatron", "pip install ..", "popd"),
    ],
)
def test_project_in_a_clone_is_not_missing(lines: tuple[str, ...]) -> None:
    assert installed(*lines).unread == ()


@pytest.mark.parametrize("line", ["apt-get install -y git", "ls", "git status", "git checkout main", "make install"])
def test_other_commands_install_nothing(line: str) -> None:
    assert installed(line) == Declared()


@pytest.mark.parametrize("line", ["xargs -n 1 pip install", "parallel pip install", "xargs conda install -y"])
def test_packages_of_a_pipe_are_not_known(line: str) -> None:
    (unread,) = installed(line).unread
    assert unread.text == f"packages that {line.split()[0]} takes from a pipe"


def test_file_changed_before_its_installation_is_not_known() -> None:
    (unread,) = installed("sed -i /torch/d r.txt", "pip install -r r.txt").unread
    assert unread.text == "r.txt: a command changes it before"
