"""Requirements files and the arguments of pip install."""

from __future__ import annotations

from collections.abc import Mapping
from posixpath import normpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ask.check.files.declared import Declared, Open, Unread, UnreadKind
from matrix.ask.check.files.requirements import DEEPEST, holds, read_arguments, read_requirements
from matrix.ground.catalog.regular_file import within_limits
from matrix.ground.catalog.stack import Place


def nothing(_: str) -> None:
    return None


def opened(files: Mapping[str, str]) -> Open:
    return lambda name: (normpath(name), files[normpath(name)]) if normpath(name) in files else None


def versions(found: Declared) -> dict[str, str]:
    return {one.name: one.version for one in found.pins}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch==2.4.1", {"torch": "2.4.1"}),
        ("torch == 2.4.1+cu121 ; python_version >= '3.8'", {"torch": "2.4.1+cu121"}),
        ("Transformer_Engine[pytorch]===1.9", {"transformer-engine": "1.9"}),
        ("torch>=2.4,<2.5", {"torch": ""}),
        ("torch", {"torch": ""}),
        ("pywin32==1; sys_platform == 'win32'", {}),
        ("pytest==1; extra == 'test'", {}),
        (
            "megatron-core @ git+https://github.com/NVIDIA/Megatron-LM.git@core_v0.12.0",
            {"megatron-core": "0.12.0"},
        ),
        ("git+https://github.com/NVIDIA/TransformerEngine.git@release_v2.4", {"transformer-engine": "2.4"}),
        ("git+https://github.com/NVIDIA/TransformerEngine.git@0123abc", {"transformer-engine": ""}),
        ("git+https://github.com/a/b.git#egg=torch", {"torch": ""}),
        ("https://x.invalid/transformer_engine-1.13.0%2Bcu12-py3-none-any.whl", {"transformer-engine": "1.13.0+cu12"}),
        ("./wheels/megatron_core-0.14.0.tar.gz", {"megatron-core": "0.14.0"}),
        ("-e git+https://github.com/NVIDIA/Megatron-LM@core_r0.8.0", {"megatron-core": "0.8.0"}),
        ("torch==2.4.* # any patch", {"torch": ""}),
        ("torch==2.4.1.*", {"torch": "2.4.1"}),
        ("--extra-index-url https://x.invalid/simple", {}),
        ("torch==2.4.1 --hash=sha256:00 --hash sha256:01", {"torch": "2.4.1"}),
    ],
)
def test_line_gives_name_and_exact_version(line: str, expected: dict[str, str]) -> None:
    found = read_requirements(line, "r.txt", nothing)
    assert (versions(found), found.notes, found.unread) == (expected, (), ())


def test_pin_has_its_line() -> None:
    text = "# stack\n\ntorch==2.4.1 \\\n  --hash=sha256:00\nnumpy\n"
    assert [str(one.place) for one in read_requirements(text, "r.txt", nothing).pins] == ["r.txt:3", "r.txt:5"]


def test_included_files_are_read_once() -> None:
    files = {"base.txt": "-r more.txt\ntorch==2.4.1", "more.txt": "-r base.txt\nnumpy==1.26.4"}
    found = read_requirements("-r base.txt\n-c missing.txt", "r.txt", opened(files))
    assert versions(found) == {"torch": "2.4.1", "numpy": "1.26.4"}
    assert found.notes == ("more.txt:1: includes base.txt again",)
    assert found.unread == (Unread(UnreadKind.FILE, "missing.txt is missing", Place("r.txt", 2)),)


def test_number_of_reads_grows_with_files() -> None:
    """Each file includes the next one twice: 2 ** 12 reads if each include were followed."""
    opened_names = []
    files = {f"{number}.txt": f"-r {number + 1}.txt\n" * 2 for number in range(12)}
    files["12.txt"] = "torch==2.4.1"

    def open_file(name: str) -> tuple[str, str]:
        opened_names.append(name)
        return name, files[name]

    declared = read_requirements("-r 0.txt", "r.txt", open_file)
    assert (versions(declared), declared.notes) == ({"torch": "2.4.1"}, ())
    assert len(opened_names) == 25


def test_chain_of_includes_ends_with_a_note() -> None:
    files = {f"{number}.txt": f"-r {number + 1}.txt" for number in range(2 * DEEPEST)}
    (unread,) = read_requirements("-r 0.txt", "r.txt", opened(files)).unread
    text = f"{DEEPEST}.txt: files include each other {DEEPEST} deep"
    assert unread == Unread(UnreadKind.FILE, text, Place(f"{DEEPEST - 1}.txt", 1))


def test_included_file_is_relative_to_its_includer() -> None:
    files = {"req/base.txt": "-r more.txt", "req/more.txt": "-r base.txt\ntorch==2.4.1", "more.txt": "torch==1.0"}
    found = read_requirements("-r req/base.txt", "r.txt", opened(files))
    assert [(one.version, str(one.place)) for one in found.pins] == [("2.4.1", "req/more.txt:2")]
    assert found.notes == ("req/more.txt:1: includes base.txt again",)


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("torch==${TORCH}", "r.txt:1: a variable without a value: torch==${TORCH}"),
        ("???", "r.txt:1: not a requirement: ???"),
        ("git+http://[/x", "r.txt:1: not a requirement: git+http://[/x"),
        ("x==1; sys_platform ~= '1'", "r.txt:1: a marker that can't be evaluated: x==1; sys_platform ~= '1'"),
    ],
)
def test_bad_line_is_unread(line: str, note: str) -> None:
    (unread,) = read_requirements(line, "r.txt", nothing).unread
    assert (unread.kind, str(unread)) == (UnreadKind.PACKAGE, note)


def test_deeply_nested_marker_is_unread() -> None:
    (unread,) = read_requirements(f"x; {'(' * 5000}", "r.txt", nothing).unread
    assert str(unread).startswith("r.txt:1: not a requirement: x; (((")


def test_arguments_of_pip_skip_option_values() -> None:
    words = ["--no-deps", "-i", "https://x.invalid", "--target=/t", "-rbase.txt", "torch==2.4.1", "-U", "numpy<2"]
    files = opened({"base.txt": "six==1.17.0"})
    assert versions(read_arguments(words, Place("Dockerfile", 3), files)) == {
        "six": "1.17.0",
        "torch": "2.4.1",
        "numpy": "",
    }


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    read_requirements(text, "r.txt", nothing)


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("/w/megatron_core*.whl", ("megatron-core", "", "===megatron_core*.whl")),
        ("dist/torch-*-linux_x86_64.whl", ("torch", "", "===torch-*-linux_x86_64.whl")),
        (
            "flash_attn-2.7.4.post1+cu12torch2.6cxx11abi$(x)-cp310-cp310-linux_x86_64.whl",
            ("flash-attn", "2.7.4.post1", ""),
        ),
    ],
)
def test_wheel_that_a_shell_names_is_a_pin(text: str, pin: tuple[str, str, str]) -> None:
    found = read_arguments([text], Place("x"), lambda _: None)
    assert [(one.name, one.version, one.limits) for one in found.pins] == [pin]
    assert found.unread == ()


DIGITS = "9" * 5_000  # more than int() takes


@pytest.mark.parametrize(
    "line", [f"torch=={DIGITS}", f"torch>=2,<{DIGITS}", f"torch==2.4.1; python_version < '{DIGITS}'"]
)
def test_number_of_5000_digits_is_not_read(line: str) -> None:
    declared = read_requirements(line, "r.txt", nothing)
    assert (declared.pins, len(declared.unread)) == ((), 1)


def test_marker_with_5000_digits_counts() -> None:
    assert holds(f"python_version < '{DIGITS}'", "")


@pytest.mark.parametrize("part", ["egtoya.-.8", "a", "1.", "a-1.", "a*-", "_*", "-1+"])
def test_long_line_is_read_in_linear_time(part: str) -> None:
    """With a cubic expression, one of 8 kB took 87 s."""
    with within_limits("requirements.txt"):
        read_requirements(part * 20_000 + "\n" + part * 20_000 + ".whl", "requirements.txt", lambda name: None)


@pytest.mark.parametrize("line", ["machine a login b password hunter2", "[hunter2]", "extraheader = basic hunter2"])
def test_included_file_is_not_quoted(line: str) -> None:
    """The name of an included file is of the input: ~/.netrc, .git/config."""
    found = read_requirements("-r netrc", "r.txt", opened({"netrc": line}))

    assert [(one.text, str(one.place)) for one in found.unread] == [("not a requirement", "netrc:1")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("machine a login b password hunt$r2", "a variable without a value"),
        (f"a; python_version < '{DIGITS}' and extra == 'hunter2'", "a marker that can't be evaluated"),
    ],
)
def test_no_kind_of_included_line_is_quoted(line: str, text: str) -> None:
    found = read_requirements("-r netrc", "r.txt", opened({"netrc": line}))
    assert [one.text for one in found.unread] == [text]


@pytest.mark.parametrize("line", ["aws_secret_access_key = hunter2", "HF_TOKEN: hunter2", "a==1 https://b:hunter2@c/d"])
def test_secret_of_a_line_is_masked(line: str) -> None:
    (unread,) = read_requirements(line, "r.txt", nothing).unread
    assert "hunter2" not in unread.text
    assert "[masked]" in unread.text


def stated(text: str) -> list[tuple[str, str, bool]]:
    return [(one.version, one.limits, one.perhaps) for one in read_requirements(text, "r.txt", nothing).pins]


@pytest.mark.parametrize(
    ("marker", "other"),
    [
        ("python_version < '3.11'", "python_version >= '3.11'"),
        ("python_full_version < '3.13'", "python_full_version >= '3.13'"),
        ("platform_machine == 'aarch64'", "platform_machine != 'aarch64'"),
    ],
)
def test_machine_of_a_marker_is_not_known(marker: str, other: str) -> None:
    """The answer does not depend on the Python and the processor of this machine."""
    text = f"torch==2.4.1; {marker}\ntorch==2.5.0; {other}\nnumpy==1.26.4; {marker}"

    assert stated(text) == [("2.4.1", "", True), ("2.5.0", "", True), ("1.26.4", "", False)]


def test_excluded_version_is_not_stated() -> None:
    assert stated("torch==2.4.1,!=2.4.1\nte==2.0,!=2.1") == [("", "!=2.4.1,==2.4.1", False), ("2.0", "", False)]
