"""Lock files, project files and conda environments."""

from __future__ import annotations

import pytest

from matrix.ask.check.declaring import reader_of
from matrix.ground.errors import MatrixError


def versions(name: str, text: str) -> dict[str, str]:
    found = reader_of(name, text, name)(text, name, lambda _: None)
    return {one.name: one.version for one in found.pins}


UV = """
version = 1
[[package]]
name = "torch"
version = "2.9.1+cu128"
source = { registry = "https://x.invalid/simple" }
[[package]]
name = "my-project"
source = { editable = "." }
"""
PYLOCK = 'lock-version = "1.0"\n[[packages]]\nname = "megatron-core"\nversion = "0.16.1"\n'
POETRY = '[[package]]\nname = "Transformer_Engine"\nversion = "2.9.0"\n[metadata]\nlock-version = "2.1"\n'
PROJECT = """
[project]
dependencies = ["torch==2.9.1", "numpy<2"]
optional-dependencies = { te = ["transformer-engine[pytorch]==2.9.0"] }
[dependency-groups]
train = ["megatron-core==0.16.1", { include-group = "test" }]
"""
CONDA = """
channels: [conda-forge]
dependencies:
  - python=3.11
  - conda-forge::pytorch=2.5.1=cuda126_py311
  - numpy >=1.26
  - pip:
    - megatron-core==0.10.0
    - -r more.txt
"""
PIPFILE = '{"default": {"torch": {"version": "==2.4.1"}, "local": {"path": "."}}}'


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("uv.lock", UV, {"torch": "2.9.1+cu128", "my-project": ""}),
        ("pylock.gpu.toml", PYLOCK, {"megatron-core": "0.16.1"}),
        ("poetry.lock", POETRY, {"transformer-engine": "2.9.0"}),
        ("pdm.lock", POETRY, {"transformer-engine": "2.9.0"}),
        (
            "pyproject.toml",
            PROJECT,
            {"torch": "2.9.1", "numpy": "", "transformer-engine": "2.9.0", "megatron-core": "0.16.1"},
        ),
        ("environment.yml", CONDA, {"python": "3.11", "torch": "2.5.1", "numpy": "", "megatron-core": "0.10.0"}),
        ("Pipfile.lock", PIPFILE, {"torch": "2.4.1", "local": ""}),
    ],
)
def test_lock_gives_all_versions(name: str, text: str, expected: dict[str, str]) -> None:
    assert versions(name, text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uv.lock", "[["),
        ("poetry.lock", "a = " + "[" * 5000),
        ("uv.lock", "a = " + "1" * 5000),
        ("Pipfile.lock", "{"),
        ("Pipfile.lock", "[" * 100_000),
    ],
)
def test_damaged_file_raises(name: str, text: str) -> None:
    with pytest.raises(MatrixError):
        versions(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uv.lock", "package = 5"),
        ("uv.lock", "[[package]]\nname = 5"),
        ("Pipfile.lock", "[]"),
        ("Pipfile.lock", '{"default": []}'),
        ("pyproject.toml", "project = 5"),
        ("pyproject.toml", "[project]\ndependencies = 5\noptional-dependencies = []"),
        ("Pipfile.lock", '{"default": {"a": 1}}'),
    ],
)
def test_unexpected_values_are_left_out(name: str, text: str) -> None:
    assert versions(name, text) == {}


def test_pin_of_a_lock_has_its_line() -> None:
    found = reader_of("uv.lock", UV, "uv.lock")(UV, "uv.lock", lambda _: None)
    assert {one.name: str(one.place) for one in found.pins} == {"torch": "uv.lock:4", "my-project": "uv.lock:8"}


VARIANTS = """
[[package]]
name = "torch"
version = "2.8.0+cu128"
resolution-markers = ["sys_platform == 'linux' and extra == 'extra-7-trainer-cu128'"]
[[package]]
name = "torch"
version = "2.8.0+cpu"
resolution-markers = ["sys_platform == 'linux' and extra == 'extra-7-trainer-cpu'", "sys_platform == 'darwin'"]
[[package]]
name = "torch"
version = "2.9.0"
resolution-markers = ["sys_platform == 'win32'", "platform_machine == 'wrong"]
"""


def test_build_for_cuda_counts_last() -> None:
    """A lock has one torch for each of the project's extras and platforms."""
    text = VARIANTS.replace(', "platform_machine == \'wrong"', "")
    found = reader_of("uv.lock", text, "uv.lock")(text, "uv.lock", lambda _: None)
    assert [(one.version, str(one.place)) for one in found.pins] == [
        ("2.8.0+cpu", "uv.lock:7"),
        ("2.8.0+cu128", "uv.lock:3"),
    ]


def test_marker_that_is_no_marker_counts() -> None:
    assert versions("uv.lock", VARIANTS)["torch"] == "2.8.0+cu128"
    assert "2.9.0" in [one.version for one in reader_of("uv.lock", "", "")(VARIANTS, "uv.lock", lambda _: None).pins]


def test_line_of_a_conda_environment_is_named() -> None:
    found = reader_of("environment.yml", CONDA, "e.yml")(CONDA, "e.yml", lambda _: None)
    assert {one.name: str(one.place) for one in found.pins} == {
        "python": "e.yml:4", "torch": "e.yml:5", "numpy": "e.yml:6", "megatron-core": "e.yml:8"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"), [("uv.lock", "package = 5"), ("poetry.lock", ""), ("Pipfile.lock", "[]"), ("Pipfile.lock", "{}")]
)
def test_lock_without_packages_is_not_read(name: str, text: str) -> None:
    """All packages would be absent, and nothing known to break."""
    found = reader_of(name, text, name)(text, name, lambda _: None)
    assert (found.complete, [item.text for item in found.unread]) == (False, ["a lock without packages that are read"])


@pytest.mark.parametrize(
    ("text", "pins", "unread"),
    [
        ('[tool.poetry.dependencies]\ntorch = "2.4.1"', [("torch", "2.4.1", "")], []),
        ('[tool.poetry.dependencies]\ntorch = {version = "==2.4.1"}', [("torch", "2.4.1", "")], []),
        ('[tool.poetry.dependencies]\ntorch = "^2.4"', [("torch", "", "^2.4")], []),
        ('[tool.poetry.dependencies]\ntorch = {path = "x"}', [("torch", "", "")], []),
        ('[project]\ndynamic = ["dependencies"]', [], ["dependencies that a program computes"]),
        (
            '[project]\ndynamic = ["dependencies"]\n[tool.setuptools.dynamic]\ndependencies = {file = ["r.txt"]}',
            [("torch", "2.3.1", "")],
            [],
        ),
    ],
)
def test_other_forms_of_project_files(text: str, pins: list[tuple[str, str, str]], unread: list[str]) -> None:
    read_project = reader_of("pyproject.toml", text, "p")
    found = read_project(text, "p", lambda name: (name, "torch==2.3.1") if name == "r.txt" else None)
    assert [(one.name, one.version, one.limits) for one in found.pins] == pins
    assert [item.text for item in found.unread] == unread


OVERRIDDEN = """
[project]
dependencies = ["torch==2.9.1", "megatron-core==0.17.0", "numpy", "flash-attn==2.8.3", "apex"]
[tool.uv]
override-dependencies = [
    "Megatron_Core==0.16.1; python_version >= '3.0'",
    "transformer-engine==2.9.0",
    "flash-attn; sys_platform == 'never'",
]
constraint-dependencies = ["numpy==2.1.0", "torch<2.10"]
[tool.uv.sources]
torch = { index = "cpu" }
apex = { path = "3rdparty/apex" }
transformer-engine = { git = "https://github.com/NVIDIA/TransformerEngine.git", tag = "v2.10" }
other = { git = "https://x.invalid/other.git" }
"""


@pytest.mark.parametrize(
    ("name", "source", "version", "limits"),
    [
        ("uv.lock", 'source = { git = "https://x.invalid/a?rev=14346b65a2#14346b65a2d0790e" }', "", "===14346b65a2"),
        ("uv.lock", 'source = { git = "https://x.invalid/a?tag=core_v0.9.0#1afee592f9" }', "0.9.0", ""),
        ("uv.lock", 'source = { git = "https://x.invalid/a#1afee592f9" }', "", "===1afee592f9"),
        ("uv.lock", 'source = { registry = "https://x.invalid/simple" }', "0.17.0", ""),
        (
            "poetry.lock",
            '[package.source]\ntype = "git"\nurl = "https://x.invalid/a"\nreference = "main"',
            "",
            "===main",
        ),
        ("poetry.lock", '[package.source]\ntype = "legacy"\nurl = "https://x.invalid/simple"', "0.17.0", ""),
        (
            "pylock.toml",
            'vcs = { type = "git", url = "https://x.invalid/a", commit-id = "1afee592" }',
            "",
            "===1afee592",
        ),
    ],
)
def test_commit_in_a_lock_is_no_release(name: str, source: str, version: str, limits: str) -> None:
    """The version beside it is that of the sources: of any commit before the release, too."""
    table = "packages" if name.startswith("pylock") else "package"
    text = f'[[{table}]]\nname = "megatron-core"\nversion = "0.17.0"\n{source}\n'
    (pin,) = reader_of(name, text, name)(text, name, lambda _: None).pins
    assert (pin.version, pin.limits) == (version, limits)


def test_settings_of_uv_replace_and_limit_dependencies() -> None:
    """uv replaces a requirement by an override or a source, and limits it by a constraint."""
    found = reader_of("pyproject.toml", OVERRIDDEN, "p")(OVERRIDDEN, "p", lambda _: None)
    versions = {one.name: one.version for one in found.pins if one.version}
    assert versions == {"torch": "2.9.1", "megatron-core": "0.16.1", "numpy": "2.1.0", "transformer-engine": "2.10"}
    assert "flash-attn" not in {one.name for one in found.pins}


@pytest.mark.parametrize(
    "settings", ["5", "[]", "{ sources = 5, override-dependencies = [5] }", "{ sources = { a = 5 } }"]
)
def test_damaged_settings_of_uv_are_left_out(settings: str) -> None:
    text = f'project.dependencies = ["torch==2.9.1"]\ntool.uv = {settings}'
    found = reader_of("pyproject.toml", text, "p")(text, "p", lambda _: None)
    assert [(one.name, one.version) for one in found.pins] == [("torch", "2.9.1")]


@pytest.mark.parametrize(
    ("name", "key", "marker", "operators"),
    [
        ("uv.lock", "resolution-markers", "[\"python_full_version {} '3.12'\"]", ("<", ">=")),
        ("uv.lock", "resolution-markers", "[\"platform_machine {} 'aarch64'\"]", ("==", "!=")),
        ("poetry.lock", "markers", "'python_version {} \"3.12\"'", ("<", ">=")),
        ("pylock.toml", "marker", "'python_version {} \"3.12\"'", ("<", ">=")),
    ],
)
def test_release_of_each_machine_may_count(name: str, key: str, marker: str, operators: tuple[str, str]) -> None:
    """The Python of this machine is not that of the job."""
    table = "packages" if name == "pylock.toml" else "package"
    forks = zip(("2.8.0", "2.9.1"), operators, strict=True)
    text = "".join(f'[[{table}]]\nname="torch"\nversion="{one}"\n{key} = {marker.format(how)}\n' for one, how in forks)

    found = reader_of(name, text, name)(text, name, lambda _: None)

    assert [(one.version, one.perhaps) for one in found.pins] == [("2.8.0", True), ("2.9.1", True)]


@pytest.mark.parametrize(
    ("line", "version", "limits"),
    [("pytorch=2.4", "", "==2.4.*"), ("pytorch=2.4.*", "", "==2.4.*"), ("pytorch==2.4", "2.4", "")],
)
def test_single_equals_sign_of_conda_is_a_range(line: str, version: str, limits: str) -> None:
    text = f"dependencies: ['{line}', python=3.11]"
    torch, python = reader_of("environment.yml", text, "e.yml")(text, "e.yml", lambda _: None).pins
    assert (torch.version, torch.limits, python.version) == (version, limits, "3.11")


GROUPS = """
[tool.poetry.dependencies]
megatron-core = { git = "https://github.com/NVIDIA/Megatron-LM.git", tag = "core_v0.8.0" }
[tool.poetry.group.train.dependencies]
transformer-engine = "1.9.0"
[tool.poetry.dev-dependencies]
torch = "2.4.1"
[tool.pdm.dev-dependencies]
more = ["numpy==1.26.4"]
"""


def test_groups_of_poetry_and_pdm_count() -> None:
    expected = {"megatron-core": "0.8.0", "transformer-engine": "1.9.0", "torch": "2.4.1", "numpy": "1.26.4"}
    assert versions("pyproject.toml", GROUPS) == expected


def test_packages_of_pixi_are_not_read() -> None:
    text = '[tool.pixi.dependencies]\npytorch = "==2.4.1"\n'
    (unread,) = reader_of("pyproject.toml", text, "p")(text, "p", lambda _: None).unread
    assert unread.text == "dependencies of pixi"
