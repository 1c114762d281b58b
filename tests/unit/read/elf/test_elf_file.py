from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matrix.ground.catalog.regular_file import UnreadableError
from matrix.ground.errors import MatrixError
from matrix.read.elf.elf_file import ElfError, SymbolReference, gnu_hash, read_elf, sysv_hash
from tests.profiles import tries
from tests.unit.read.elf.objects import library, needs_compiler, shared

pytestmark = needs_compiler


def test_hashes_are_those_of_the_formats() -> None:
    """The values are those of the examples in the ELF gABI and of binutils."""
    assert (gnu_hash(""), gnu_hash("printf"), sysv_hash("printf")) == (0x1505, 0x156B2BB8, 0x077905A6)


@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_symbols_are_found_by_both_hash_tables(tmp_path: Path, style: str) -> None:
    source = "int own(void) { return 1; }\nint other(void);\nint call(void) { return other(); }"
    file = read_elf(shared(tmp_path / "a.so", source, f"-Wl,--hash-style={style}"))
    defined = [file.defines(SymbolReference(name), gnu_hash(name)) for name in ("own", "call", "other", "absent")]
    assert defined == [True, True, False, False]
    assert SymbolReference("other") in file.references
    assert file.relocated("other")


def test_headers_of_a_library(tmp_path: Path) -> None:
    library(tmp_path, "libb.so.1")
    options = (f"-L{tmp_path}", "-l:libb.so.1", "-Wl,-rpath,$ORIGIN/x:/y", "-Wl,--enable-new-dtags")
    file = read_elf(library(tmp_path, "liba.so.2", "int a;", *options))
    assert (file.soname, file.needed[0], file.runpath, file.rpath) == (
        "liba.so.2",
        "libb.so.1",
        ("$ORIGIN/x", "/y"),
        (),
    )


def test_versions_of_symbols(tmp_path: Path) -> None:
    (tmp_path / "versions").write_text("OLD_1 { global: f; local: *; };\nNEW_2 { global: g; } OLD_1;")
    source = "int f(void) { return 1; }\nint g(void) { return 2; }"
    path = library(tmp_path, "libv.so.1", source, f"-Wl,--version-script={tmp_path / 'versions'}")
    file = read_elf(path)
    assert {"OLD_1", "NEW_2"} <= set(file.definitions.values())
    cases = {("f", "OLD_1"): True, ("f", "NEW_2"): False, ("g", "NEW_2"): True, ("g", ""): True}
    assert {case: file.defines(SymbolReference(*case), gnu_hash(case[0])) for case in cases} == cases
    user = read_elf(
        shared(tmp_path / "u.so", "int f(void); int u(void) { return f(); }", f"-L{tmp_path}", "-l:libv.so.1")
    )
    assert SymbolReference("f", "OLD_1") in user.references
    assert ("libv.so.1", "OLD_1") in [(need.library, need.version) for need in user.required]


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "an empty file"),
        (b"\x7fE", "2 bytes"),
        (b"#!/bin/sh\n", "no ELF file"),
        (b"\x7fELF\x01\x01" + bytes(60), "32"),
        (b"\x7fELF\x02\x02" + bytes(60), "big-endian"),
    ],
)
def test_other_files_are_an_error(tmp_path: Path, content: bytes, got: str) -> None:
    (tmp_path / "a.so").write_bytes(content)
    with pytest.raises(ElfError) as error:
        read_elf(tmp_path / "a.so")
    assert got in str(error.value.got)


def test_truncated_file_is_an_error(tmp_path: Path) -> None:
    path = shared(tmp_path / "a.so")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ElfError, match="damaged"):
        read_elf(path)


def test_sparse_file_of_4_gb_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "a.so").open("wb") as file:
        file.truncate(4 * 2**30)
    with pytest.raises(ElfError, match="no ELF file"):
        read_elf(tmp_path / "a.so")


def test_fifo_and_circle_of_links_are_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.so")
    (tmp_path / "a.so").symlink_to("b.so")
    (tmp_path / "b.so").symlink_to("a.so")
    for name, got in (("fifo.so", "FIFO"), ("a.so", "symbolic links")):
        with pytest.raises(UnreadableError) as error:
            read_elf(tmp_path / name)
        assert got in str(error.value.got)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("elf")
    return shared(folder / "a.so", "#include <stdlib.h>\nvoid *f(void) { return malloc(8); }").read_bytes()


@settings(tries(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_end_in_a_message(whole: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """Truncated at any place, or with any bytes changed: an error of the project, or a result."""
    content = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 8))):
        if content:
            content[data.draw(st.integers(0, min(len(content), 1200) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.so"
    path.write_bytes(content)
    try:
        file = read_elf(path)
        list(file.references), file.required, file.definitions, file.defines(SymbolReference("f"), gnu_hash("f"))
        file.relocated("malloc")
    except MatrixError:
        pass
