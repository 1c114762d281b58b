"""Whether the compiled packages of an environment load, each in the process that imports it, and what mends them.

No package is imported and no program started. docs/loading.md states the rules and what they leave out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from matrix.ground.catalog import versions
from matrix.ground.catalog.regular_file import UnreadableError
from matrix.read.elf.dynamic_linker import LinkProblem, ProblemKind, Process
from matrix.read.elf.elf_file import ElfError, ElfFile, SymbolReference, gnu_hash, gpu_code
from matrix.read.elf.load_facts import CompiledPackage, FixCommand, PackageImport, contains, link_table
from matrix.read.elf.python_site import CompiledFile, InstalledPackage, PythonSite, after_import, cuda_of, started

INIT: Final = "PyInit_"  # a shared object with such a function is an extension module
REINSTALL: Final = "python -m pip install --force-reinstall --no-cache-dir --no-deps '{package}=={public}'"
_MAJOR: Final = re.compile(r"lib(?:cudart|cublas|cublasLt|cufft|nvrtc)\.so\.(\d+)")


@dataclass(frozen=True)
class LoadFinding:
    """What does not load, or loads and does not work: the package at fault, where, the consequence, the mending line.

    `certain`: the package is of Megatron's stack, so that the job breaks; else the program that imports it.
    """

    package: str
    version: str
    what: str
    path: Path | None
    consequence: str
    mend: str
    certain: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "path": str(self.path or "")}

    @property
    def title(self) -> str:
        """The package with its version; of a file that no package lists, its name."""
        return f"{self.package} {self.version}".strip() or (self.path.name if self.path else "")


@dataclass
class LoadCheck:
    """The findings of an environment; `sm` is the compute capability of the GPUs, "" where it is not known."""

    python: PythonSite
    sm: str = ""
    counted: int = field(default=0, init=False)

    def findings(self) -> tuple[LoadFinding, ...]:
        """Return everything that does not load or does not fit, each once."""
        processes = (process for process, _ in self._processes.values())
        misfits = (finding for process in processes for finding in self._misfits(process))
        parts = (self._unread(), self._releases(), self._imports(), self._extensions(), self._lacking(), misfits)
        return tuple(dict.fromkeys(finding for part in parts for finding in part))

    @cached_property
    def cuda(self) -> str:
        """The CUDA that torch was built for, "" for none."""
        return cuda_of(self.python)

    @cached_property
    def _rows(self) -> dict[str, PackageImport]:
        """The rows of the packages that are installed."""
        rows: dict[str, PackageImport] = {}
        for row in link_table().importing:
            version = self.python.versions.get(row.package)
            if version is not None and row.fits(version):
                rows.setdefault(row.package, row)
        return rows

    @cached_property
    def _processes(self) -> dict[str, tuple[Process, tuple[LinkProblem, ...]]]:
        """The process after the import of each package, "" for none; with what of the import does not load."""
        processes: dict[str, tuple[Process, tuple[LinkProblem, ...]]] = {
            "": (started(self.python, link_table().provided), ())
        }
        for name, row in self._rows.items():
            earlier = next((processes[name] for name in row.after if name in processes), processes[""])
            processes[name] = after_import(earlier[0], self.python, row)
        return processes

    def _unread(self) -> Iterator[LoadFinding]:
        """Yield the lists of files that can't be read: the compiled files of their packages are not known."""
        for package in self.python.packages:
            for path, got in package.unread:
                text = f"{path.name} can't be read: {got}"
                yield self._built_anew(package, text, path, "which files the package has is not known")

    def _releases(self) -> Iterator[LoadFinding]:
        """Yield parts of one package that are of different releases."""
        for row in link_table().same:
            parts = {name: self.python.versions[name] for name in row.packages if name in self.python.versions}
            wanted = parts.get(row.packages[0])
            others = {name: version for name, version in parts.items() if version != wanted}
            if wanted and others:
                text = f"of another release than {row.packages[0]} {wanted}"
                install = row.install.format(parts=" ".join(f"'{name}=={wanted}'" for name in others))
                for name, version in others.items():
                    yield LoadFinding(name, version, text, None, row.lacks, install)

    def _imports(self) -> Iterator[LoadFinding]:
        """Yield what the imports of packages open themselves and can't load."""
        for name, (_, problems) in self._processes.items():
            opened = [problem for problem in problems if problem.by == Path(name)]  # files that its Python opens
            for problem in (*opened, *_grouped([problem for problem in problems if problem not in opened])):
                yield self._finding(problem, self._package(name), f"`import {name.replace('-', '_')}` fails")

    def _package(self, name: str) -> InstalledPackage:
        packages = (package for package in self.python.packages if package.name == name)
        return next(packages, InstalledPackage(name, "", Path()))

    def _extensions(self) -> Iterator[LoadFinding]:
        """Yield the extension modules that do not load, and those that have no code for the GPU."""
        for package in self.python.packages:
            files = [file for file in package.files if file.module and not self._is_optional(package, file)]
            loadable = {(file.path.parent, file.module) for file in files if file.minor in ("", self.python.minor)}
            codes: list[ElfFile] = []
            for file in files:
                if file.minor not in ("", self.python.minor):
                    if (file.path.parent, file.module) not in loadable:
                        yield self._other_python(package, file)
                    continue
                yield from self._of_file(package, file, codes)
            if (code := gpu_code(codes)) and not code.runs_on(self.sm):
                consequence = "its kernels raise: no kernel image is available for execution on the device"
                text = f"no code for compute capability {self.sm}: it has {code}"
                yield self._built_anew(package, text, codes[0].path, consequence)

    def _of_file(self, package: InstalledPackage, file: CompiledFile, codes: list[ElfFile]) -> Iterator[LoadFinding]:
        base = self._processes[""][0]
        try:
            read = base.read(file.path)
        except (ElfError, UnreadableError) as error:
            if self._is_extension(package, file, None):
                yield self._finding(LinkProblem(ProblemKind.FILE, str(error.got), file.path), package, _importing(file))
            return
        if not self._is_extension(package, file, read):
            return
        process, failed = self._process_of(package, file)
        self.counted += 1
        opened = process.copy()
        problems = () if failed else opened.open(file.path)
        if not problems and not failed:
            yield from self._misfits(opened)
        for group in _grouped(problems):
            yield self._finding(group, package, _importing(file))
        if self.sm and not problems and any(read.fat):
            codes.append(read)

    def _is_extension(self, package: InstalledPackage, file: CompiledFile, read: ElfFile | None) -> bool:
        """Return whether a file is imported: it has the function of an extension module, or the stack opens it."""
        rows = (row for row in link_table().compiled if row.package == package.name)
        if any(fnmatch(file.module, pattern) for row in rows for pattern in row.modules):
            return True
        name = f"{INIT}{file.module}"
        return read is None or read.defines(SymbolReference(name), gnu_hash(name))

    def _process_of(self, package: InstalledPackage, file: CompiledFile) -> tuple[Process, bool]:
        """Return the process in which a file is opened, and whether that process fails before."""
        names = [name for name, row in self._rows.items() if any(fnmatch(file.module, own) for own in row.own)]
        if not names or not package.name.startswith(names[-1]):
            others = ((name, row) for name, row in self._rows.items() if row.libraries and name != package.name)
            names = [name for name, row in others if self._needs(package, file, name, row)][:1] or [package.name]
        process, problems = self._processes.get(names[-1], self._processes[""])
        return process, bool(problems)

    def _needs(self, package: InstalledPackage, file: CompiledFile, name: str, row: PackageImport) -> bool:
        """Return whether a package declares another one, or its file needs a library of it."""
        if any(_required_name(text) == name for text in package.requires):
            return True
        read = self._processes[""][0].read(file.path)
        return any(fnmatch(library, pattern) for library in read.needed for pattern in row.libraries)

    def _is_optional(self, package: InstalledPackage, file: CompiledFile) -> bool:
        rows = (row for row in link_table().optional if fnmatch(package.name, row.package))
        return any(fnmatch(f"/{file.name}", pattern) for row in rows for pattern in row.files)

    def _lacking(self) -> Iterator[LoadFinding]:
        """Yield the packages of the stack that lack an extension; the first row of a package that fits counts."""
        modules = [file.path.name.partition(".")[0] for package in self.python.packages for file in package.files]
        lacking: dict[str, LoadFinding] = {}
        for row in link_table().compiled:
            version = self.python.versions.get(row.package)
            if version is None or row.package in lacking or not contains(row.releases, version):
                continue
            if not any(fnmatch(module, pattern) for module in modules for pattern in row.modules):
                text = f"its extension {row.modules[0]} is missing"
                install = self._filled(row.install, self._package(row.package))
                lacking[row.package] = LoadFinding(row.package, version, text, None, row.lacks, install)
        yield from lacking.values()

    def _misfits(self, process: Process) -> Iterator[LoadFinding]:
        """Yield what loads and does not fit: two copies of a library, two CUDA majors, an older cuDNN."""
        yield from self._copies(process)
        yield from self._majors(process)
        yield from self._older(process)

    def _copies(self, process: Process) -> Iterator[LoadFinding]:
        paths: dict[str, list[Path]] = {}
        for mapped in process.objects:
            if mapped.elf.soname:
                paths.setdefault(mapped.elf.soname, []).append(mapped.elf.path)
        for soname, copies in paths.items():
            if len(copies) > 1:
                consequence = "both are loaded; which of them a call reaches depends on the order of imports"
                yield self._two(
                    f"two copies of {soname}: {copies[0]} and {copies[1]}", copies[1], copies[0], consequence
                )

    def _two(self, what: str, path: Path, used: Path, consequence: str) -> LoadFinding:
        package = self.python.owner(path) or self.python.owner(used)
        outside = next((file for file in (path, used) if self.python.owner(file) is None), None)
        variables = self._variables_of(outside) if outside else []
        if variables:
            mend = "; ".join(f"unset {name}" for name in sorted(variables))
        else:
            mend = f"python -m pip uninstall -y {package.name}" if package else f"remove {outside or path}"
        name, version = (package.name, package.version) if package else ("", "")
        return LoadFinding(name, version, what, path, consequence, mend)

    def _majors(self, process: Process) -> Iterator[LoadFinding]:
        """Yield extensions of the stack that load a CUDA runtime of another major than torch's."""
        major = self.cuda.partition(".")[0]
        for mapped in process.objects:
            match = _MAJOR.fullmatch(mapped.elf.soname)
            if not match or not major or match[1] == major:
                continue
            loader = mapped.loader
            while loader and self.python.owner(loader.elf.path) is None and loader.loader:
                loader = loader.loader
            package = self.python.owner(loader.elf.path) if loader else None
            if package and package.name != "torch":
                needing = loader.elf.path.name if loader else ""
                text = f"{needing} needs {mapped.elf.soname}; torch is built for CUDA {self.cuda}"
                consequence = "two releases of CUDA in one process: their streams and handles do not fit each other"
                yield self._built_anew(package, text, mapped.elf.path, consequence)

    def _older(self, process: Process) -> Iterator[LoadFinding]:
        """Yield libraries of an older release than that of the package's build."""
        for row in link_table().interface:
            by = self._package(row.by)
            declared = row.declared.format(cuda=self.cuda.partition(".")[0])
            wanted = next((version for text in by.requires if (version := _pinned(text, declared))), "")
            loaded = next((mapped for mapped in process.objects if mapped.elf.soname.startswith(row.library)), None)
            if not wanted or not loaded:
                continue
            found = _release_of(loaded.elf.path, self.python)
            if found and not _fits(found, wanted):
                owner = self.python.owner(loaded.elf.path)
                text = f"{loaded.elf.path.name} is {found}; {row.by} {by.version} was built with {wanted}: {row.rule}"
                install = row.install.format(cuda=self.cuda.partition(".")[0], wanted=wanted)
                if owner is None and (variables := self._variables_of(loaded.elf.path)):
                    install = f"unset {variables[0]}"
                name = owner.name if owner else row.library
                yield LoadFinding(name, owner.version if owner else found, text, loaded.elf.path, row.lacks, install)

    def _variables_of(self, path: Path) -> list[str]:
        """Return the variables that name a folder above a file."""
        folders = {name: value.split(":") for name, value in sorted(self.python.environ.items()) if "/" in value}
        return [name for name, parts in folders.items() if any(Path(part) in path.parents for part in parts if part)]

    # ------------------------------------------------------------------ words

    def _finding(self, problem: LinkProblem, importing: InstalledPackage, consequence: str) -> LoadFinding:
        """Return the finding of a problem, with the package at fault: the owner of the object that can't be loaded."""
        package = self.python.owner(problem.by) or importing
        row = self._row(package.name)
        certain = row is not None or any(package.name in same.packages for same in link_table().same)
        text = f"{problem.by.name} {WORDS[problem.kind].format_map(self._values(problem))}"
        if problem.kind is ProblemKind.LIBRARY and (other := self._other_major(problem.name)):
            text += f"; the process has {other}"
        if problem.by == Path(package.name):
            text = f"{WORDS[ProblemKind.LIBRARY].format_map(self._values(problem))}: its import opens it"
        return LoadFinding(
            package.name, package.version, text, problem.by, consequence, self._mend(problem, package, row), certain
        )

    def _values(self, problem: LinkProblem) -> dict[str, str]:
        from matrix.ground.verdicts.crash import plain_name  # for findings alone

        values = {"name": problem.name, "more": "", "library": str(problem.library or ""), "is": "is"}
        if problem.kind is ProblemKind.SYMBOL:
            plain = plain_name(problem.name)
            more = f" and {problem.count - 1} more" if problem.count > 1 else ""
            values |= {"name": problem.name + f" ({plain})" * (plain not in ("", problem.name)), "more": more}
        elif problem.names:
            values |= {"name": " and ".join(problem.names), "is": "are"}
        return values

    def _other_major(self, library: str) -> str:
        """Return a library of another major with this name that the process has, "" for none."""
        base = library.partition(".so")[0]
        names = {mapped.elf.soname for process, _ in self._processes.values() for mapped in process.objects}
        return next((name for name in sorted(names) if name.partition(".so")[0] == base and name != library), "")

    def _mend(self, problem: LinkProblem, package: InstalledPackage, row: CompiledPackage | None) -> str:
        for line in link_table().mend:
            if match := self._applies(line, problem, package):
                groups = {name: text for name, text in match.groupdict().items() if text}
                return self._filled(line.install, package, groups)
        if row and self._other_major(problem.name):  # built for another CUDA: no further library mends that
            return self._filled(row.install, package)
        if problem.by == Path(package.name):
            row = None
        if problem.kind in (ProblemKind.LIBRARY, ProblemKind.VERSION):
            from matrix.ground.catalog.kinds import kind_table

            group, text = ("library", problem.name) if problem.kind is ProblemKind.LIBRARY else ("glibc", problem.name)
            facts = (fact for fact in kind_table().fact if fact.group == group and re.match(fact.pattern, text))
            if (fact := next(facts, None)) and fact.install and not (row and problem.kind is ProblemKind.VERSION):
                return fact.install
        if row:
            return self._filled(row.install, package)
        return (
            self._filled(REINSTALL, package) if package.version else f"compile {problem.by.name} again for this Python"
        )

    def _applies(self, line: FixCommand, problem: LinkProblem, package: InstalledPackage) -> re.Match[str] | None:
        if line.package and not re.fullmatch(line.package, package.name):
            return None
        if (line.problem or ProblemKind.LIBRARY.value) != problem.kind.value:
            return None
        major = self.cuda.partition(".")[0]
        if "{cuda}" in line.install and not major:
            return None
        if not contains(line.releases, package.version) or (line.major and line.major != major):
            return None
        match = re.fullmatch(line.name or ".*", problem.name)
        if match and line.differs and (not major or match.groupdict().get("other") == major):
            return None
        return match

    def _filled(self, text: str, package: InstalledPackage, groups: Mapping[str, str] | None = None) -> str:
        public = package.version.partition("+")[0]
        torch = self.python.versions.get("torch", "").partition("+")[0]
        cuda = self.cuda.partition(".")[0]
        named = {"package": package.name, "version": package.version, "public": public, "site": str(package.folder)}
        return text.format_map({**named, "torch": torch, "cuda": cuda, **(groups or {})})

    def _built_anew(self, package: InstalledPackage, what: str, path: Path, consequence: str) -> LoadFinding:
        row = self._row(package.name)
        install = self._filled(row.install if row else REINSTALL, package)
        return LoadFinding(package.name, package.version, what, path, consequence, install, row is not None)

    def _other_python(self, package: InstalledPackage, file: CompiledFile) -> LoadFinding:
        text = f"{file.path.name} is for Python {file.minor}; this environment has {self.python.minor}"
        consequence = f"`import {file.module}` raises ModuleNotFoundError"
        return self._built_anew(package, text, file.path, consequence)

    def _row(self, name: str) -> CompiledPackage | None:
        rows = [row for row in link_table().compiled if row.package == name]
        return rows[-1] if rows else None


WORDS: Final[Mapping[ProblemKind, str]] = {
    ProblemKind.LIBRARY: "needs {name}, which {is} not found",
    ProblemKind.VERSION: "needs version {name}, which {library} does not define",
    ProblemKind.SYMBOL: "needs the symbol {name}{more}, which no loaded library defines",
    ProblemKind.FILE: "can't be loaded: {name}",
}


def _importing(file: CompiledFile) -> str:
    return f"`import {'.'.join((Path(file.name).parent / file.module).parts)}` fails"


def _grouped(problems: Sequence[LinkProblem]) -> Iterator[LinkProblem]:
    """Yield the libraries that one object lacks as one problem."""
    groups: dict[tuple[ProblemKind, Path], list[LinkProblem]] = {}
    for problem in problems:
        groups.setdefault((problem.kind, problem.by), []).append(problem)
    for group in groups.values():
        names = tuple(dict.fromkeys(problem.name for problem in group))
        yield group[0] if len(group) == 1 else replace(group[0], names=names, count=len(names))


def _required_name(text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return ""
    return "" if requirement.marker and "extra" in str(requirement.marker) else canonicalize_name(requirement.name)


def _pinned(text: str, package: str) -> str:
    """Return the release that a requirement pins of a package, "" for another package or none."""
    match = re.match(rf"{re.escape(package)}\s*\(?==\s*([\w.]+)", text)
    return match[1] if match else ""


def _release_of(path: Path, python: PythonSite) -> str:
    """Return the release of a library: of its package, else the one in the name of its file."""
    owner = python.owner(path)
    if owner:
        return owner.version
    match = re.search(r"\.so\.(\d{1,9}\.\d[\d.]{0,99})$", os.path.realpath(path))
    return match[1] if match else ""


def _fits(loaded: str, built: str) -> bool:
    """Return whether a library has the major of the build and no older minor version."""
    if not (versions.is_version(loaded) and versions.is_version(built)):
        return True
    mine, wanted = versions.parse(loaded), versions.parse(built)
    return mine.major == wanted.major and mine.minor >= wanted.minor


@dataclass(frozen=True)
class LoadReport:
    """What does not load, of how many extensions of how many packages."""

    findings: tuple[LoadFinding, ...]
    extensions: int
    packages: int

    @property
    def breaks(self) -> tuple[LoadFinding, ...]:
        """Those of Megatron's stack."""
        return tuple(finding for finding in self.findings if finding.certain)

    def __str__(self) -> str:
        count = len(self.findings)
        counted = f"{self.extensions} compiled modules of {self.packages} packages read"
        return f"{counted}: {f'{count} problem' + 's' * (count != 1) if count else 'each loads'}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        findings = [finding.to_json() for finding in self.findings]
        return {"extensions": self.extensions, "packages": self.packages, "findings": findings}


def load_report(python: PythonSite, sm: str = "") -> LoadReport:
    """Return what does not load in an environment; `sm` is the compute capability of its GPUs, "" where unknown."""
    check = LoadCheck(python, sm)
    findings = check.findings()
    return LoadReport(findings, check.counted, len(python.versions))
