"""Each prediction is compared with what the dynamic linker of this machine does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matrix.read.elf.dynamic_linker import LinkProblem, LinkSite, ProblemKind, Process
from tests.unit.read.elf.objects import library, linker_message, needs_compiler, shared

pytestmark = needs_compiler
USES = "int f(void); int use(void) { return f(); }"
DEFINES = "int f(void) { return 1; }"


def predicted(*paths: Path, **environ: str) -> tuple[LinkProblem, ...]:
    """Return the problems of the last file, after the others, in a process of this Python."""
    process = Process(LinkSite.of(Path("/"), "x86-64", environ))
    process.start(Path(os.path.realpath("/proc/self/exe")))
    for path in paths[:-1]:
        assert process.open(path) == ()
    return process.open(paths[-1])


@pytest.mark.parametrize("dtags", ["--enable-new-dtags", "--disable-new-dtags"])
@pytest.mark.parametrize("present", [(), ("own",), ("path",), ("own", "path")])
def test_folders_are_searched_in_order(tmp_path: Path, dtags: str, present: tuple[str, ...]) -> None:
    """The libraries of the two folders define different symbols, so that the order decides whether the file loads."""
    for name in ("link", "own", "path"):
        if name in present or name == "link":
            library(tmp_path / name, "libdep.so.1", DEFINES if name in ("link", "own") else "int g;")
    options = (f"-L{tmp_path / 'link'}", "-l:libdep.so.1", "-Wl,-rpath,$ORIGIN/own", f"-Wl,{dtags}")
    path = shared(tmp_path / "a.so", USES, *options)
    environ = {"LD_LIBRARY_PATH": str(tmp_path / "path")}
    problems, message = predicted(path, **environ), linker_message(path, **environ)
    assert bool(problems) == bool(message)
    assert all(problem.name in message for problem in problems)


def test_missing_library_is_named_with_its_user(tmp_path: Path) -> None:
    inner = library(tmp_path, "libinner.so.1")
    outer = library(tmp_path, "libouter.so.1", "int o;", f"-L{tmp_path}", "-l:libinner.so.1", "-Wl,-rpath,$ORIGIN")
    path = shared(tmp_path / "a.so", "int a;", f"-L{tmp_path}", "-l:libouter.so.1", "-Wl,-rpath,$ORIGIN",
                  f"-Wl,-rpath-link,{tmp_path}")  # fmt: skip
    assert predicted(path) == ()
    inner.unlink()
    assert predicted(path) == (LinkProblem(ProblemKind.LIBRARY, "libinner.so.1", outer),)
    assert "libinner.so.1: cannot open shared object file" in linker_message(path)


def test_loaded_library_is_reused_by_soname(tmp_path: Path) -> None:
    loaded = library(tmp_path / "elsewhere", "libdep.so.1", DEFINES)
    path = shared(tmp_path / "a.so", USES, f"-L{loaded.parent}", "-l:libdep.so.1")
    assert predicted(path)[0].kind is ProblemKind.LIBRARY
    assert "cannot open" in linker_message(path)
    assert predicted(loaded, path) == ()
    assert linker_message(loaded, path) == ""


def test_undefined_symbol(tmp_path: Path) -> None:
    path = shared(tmp_path / "a.so", USES)
    (problem,) = predicted(path)
    assert (problem.kind, problem.name) == (ProblemKind.SYMBOL, "f")
    assert "undefined symbol: f" in linker_message(path)


def test_weak_symbol_may_be_missing(tmp_path: Path) -> None:
    path = shared(tmp_path / "a.so", "__attribute__((weak)) int f(void); int use(void) { return f ? f() : 0; }")
    assert predicted(path) == ()
    assert linker_message(path) == ""


def test_symbols_of_local_libraries_are_hidden(tmp_path: Path) -> None:
    defines, path = library(tmp_path, "libdep.so.1", DEFINES), shared(tmp_path / "a.so", USES)
    assert predicted(defines, path)[0].name == "f"
    assert "undefined symbol: f" in linker_message(defines, path)
    process = Process(LinkSite.of(Path("/"), "x86-64", {}))
    process.start(Path(os.path.realpath("/proc/self/exe")))
    assert process.open(defines, visible=True) == ()
    assert process.copy().open(path) == ()


def test_missing_version_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("DEP_2 { global: f; };")
    (tmp_path / "old").write_text("DEP_1 { global: f; };")
    library(tmp_path / "link", "libdep.so.1", DEFINES, f"-Wl,--version-script={tmp_path / 'new'}")
    old = library(tmp_path, "libdep.so.1", DEFINES, f"-Wl,--version-script={tmp_path / 'old'}")
    path = shared(tmp_path / "a.so", USES, f"-L{tmp_path / 'link'}", "-l:libdep.so.1", "-Wl,-rpath,$ORIGIN")
    assert predicted(path) == (LinkProblem(ProblemKind.VERSION, "DEP_2", path, old),)
    assert "version `DEP_2' not found" in linker_message(path)


def test_failed_opening_leaves_nothing_behind(tmp_path: Path) -> None:
    defines = library(tmp_path, "libdep.so.1", DEFINES)
    options = (f"-L{tmp_path}", "-l:libdep.so.1", "-Wl,-rpath,$ORIGIN")
    failing = shared(
        tmp_path / "bad.so", "int f(void), absent(void); int use(void) { return f() + absent(); }", *options
    )
    process = Process(LinkSite.of(Path("/"), "x86-64", {}))
    process.start(Path(os.path.realpath("/proc/self/exe")))
    before = list(process.objects)
    assert process.open(failing, visible=True)[0].name == "absent"
    assert process.objects == before
    assert process.open(defines) == ()


def test_absolute_links_of_an_image_stay_inside(tmp_path: Path) -> None:
    library(tmp_path / "usr/lib", "libdep.so.1")
    (tmp_path / "lib64").symlink_to("/usr/lib")
    assert LinkSite(tmp_path).inside("/lib64/libdep.so.1") == tmp_path / "usr/lib/libdep.so.1"
    (tmp_path / "circle").symlink_to("/circle")
    assert not LinkSite(tmp_path).inside("/circle/x").exists()
    assert LinkSite(tmp_path).inside("/../../etc") == tmp_path / "etc"


@pytest.mark.parametrize("dtags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_runpath_switches_off_the_rpath_of_loaders(tmp_path: Path, dtags: str) -> None:
    """a.so has an RPATH with the library; libinner.so.1, which needs it, has an own RPATH or RUNPATH without it."""
    dep = library(tmp_path / "deps", "libdep.so.1")
    own = (f"-L{dep.parent}", "-l:libdep.so.1", "-Wl,-rpath,/nonexistent", f"-Wl,{dtags}")
    inner = library(tmp_path / "inner", "libinner.so.1", "int inner;", *own)
    options = (f"-L{inner.parent}", "-l:libinner.so.1", f"-Wl,-rpath,{inner.parent}:{dep.parent}")
    path = shared(tmp_path / "a.so", "int a;", *options, "-Wl,--disable-new-dtags", f"-Wl,-rpath-link,{dep.parent}")
    problems, message = predicted(path), linker_message(path)
    assert bool(problems) == bool(message) == (dtags == "--enable-new-dtags")
