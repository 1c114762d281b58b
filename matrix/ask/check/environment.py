"""The stack of an environment, an image or a lock, what does not load in it, and the facts of this machine.

No package is imported or started. The facts are drivers, GPUs, MPI, memory and the interpreter of a job.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matrix.ask.check.declaring import CheckInput, command_jobs, declared_stack, read
from matrix.ask.check.files.declared import Statement, Unread, UnreadKind
from matrix.ask.check.job_site import SHM, JobSite
from matrix.ask.check.user_stack import UserStack, build
from matrix.ground.catalog.codec import MalformedError, decode_json
from matrix.ground.catalog.machine import Machine, PythonEnvironment
from matrix.ground.catalog.model import LABEL, Catalog
from matrix.ground.catalog.regular_file import UnreadableError, read_regular_text
from matrix.ground.catalog.stack import (
    ABSENT,
    DRIVER,
    GPUS,
    MCORE,
    PYTHON,
    SM,
    TE,
    TORCH,
    Place,
    component_named,
    components,
)
from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError
from matrix.kit.launch import VARIABLES
from matrix.read import scratch
from matrix.read.commands import NOT_STARTED, TIMED_OUT, python_code, run
from matrix.read.machine import hardware
from matrix.read.machine.hardware import allowed, available

if TYPE_CHECKING:
    from matrix.read.elf.load_check import LoadReport
    from matrix.read.elf.python_site import PythonSite


SCRIPT: Final = Path(__file__).with_name("python_script.py")
# Seconds for an interpreter to import torch and Transformer Engine: 2 s and 5 s on 2 cores, a minute on a cold network
# file system. mpirun --version takes 0.1 s.
TIMEOUT_S: Final = 180.0
MPIRUN_S: Final = 10.0


def job_site(environ: Mapping[str, str], variables: Iterable[str], python: PythonEnvironment) -> JobSite:
    """Return this machine for a job of `python`; of `environ`, the variables of launchers and `variables` alone."""
    libraries = hardware.query(python=str(python.path or sys.executable))
    shm = shutil.disk_usage(SHM) if Path(SHM).is_dir() else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = Machine(
        driver=hardware.driver_of() or libraries.nvml.driver,
        cuda=libraries.cuda,
        nvml=libraries.nvml,
        memory=memory,
        available=available(),
        limit=allowed(memory),
        shm=shm and shm.total,
        shm_free=shm and shm.free,
        mpirun=mpirun(),
    )
    return JobSite(python, machine, {name: environ[name] for name in (*VARIABLES, *variables) if name in environ})


def python_of(path: str) -> PythonEnvironment:
    """Return the packages of another interpreter, which imports torch.

    One that crashes or hangs while it imports is reported in `problems`. Raises MatrixError if it can't be started.
    """
    result = run(python_code(path, SCRIPT.read_text(encoding="utf-8")), seconds=TIMEOUT_S)
    if result.code == NOT_STARTED:
        raise MatrixError(
            "the interpreter can't be started", where=path, got=result.err, fix="--python PATH names another one"
        )
    if result.code == TIMED_OUT:
        return PythonEnvironment(path=Path(path), problems=(f"{path} did not finish in {TIMEOUT_S:.0f} s",))
    last_line = (result.err.strip().splitlines() or ["nothing"])[-1]
    with suppress(MalformedError):
        environment = decode_json(PythonEnvironment, (result.out.splitlines() or [""])[-1])
        strange = [f"{name} {text!r}" for name, text in environment.packages.items() if not is_version(text)]
        if environment.python and not strange:
            return replace(environment, path=Path(path))
        last_line = ", ".join(strange) or last_line
    return PythonEnvironment(path=Path(path), problems=(f"{path} exited with status {result.code}: {last_line}",))


def mpirun() -> tuple[str, str] | None:
    """Return the path of the mpirun on PATH and the first line of its --version; None without one."""
    path = shutil.which("mpirun")
    if path is None:
        return None
    result = run([path, "--version"], seconds=MPIRUN_S)
    problem = result.complaint if result.code in (NOT_STARTED, TIMED_OUT) else ""
    lines = [f"reports no version: {problem}"] if problem else result.out.strip().splitlines()
    return path, (lines or ["reports no version"])[0][:100]


INSTALLED: Final = Place("installed")
# Distributions by axis; the first that is installed counts.
DISTRIBUTIONS: Final = {
    TORCH: ("torch",),
    MCORE: ("megatron-core",),
    TE: ("transformer-engine", "transformer-engine-torch", "transformer-engine-cu13", "transformer-engine-cu12"),
}
# Of a clone on the import path, which has no metadata: MAJOR = 0, PRE_RELEASE = 'rc0'.
PACKAGE_INFO: Final = "megatron/core/package_info.py"
# Lays out the wheels of releases in a folder; returns why not, "" where all are there.
LayWheels = Callable[[Path, Sequence[str]], str]
_PART: Final = re.compile(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE) = ['\"]?([\w.]*)['\"]?$", re.MULTILINE)
AFTERWARDS: Final = "install it, then check the environment: megatrix check --loadable"


def statements(python: PythonEnvironment, folders: Iterable[str], further: Iterable[str] = ()) -> list[Statement]:
    """Return the versions of an interpreter's environment; a package that is not installed is stated as absent.

    `folders` are searched for a clone of Megatron-LM before the installed packages, as Python does. `further` are
    packages besides those of components.toml.
    """
    path = Place(str(python.path))
    installed = {PYTHON: Statement(PYTHON, python.python, path)} if python.python else {}
    for package, version in sorted(python.packages.items()):  # transformer-engine before transformer-engine-cu12
        if component := component_named(package, further):
            installed.setdefault(component, Statement(component, version, INSTALLED))
    absent = {name: Statement(name, ABSENT, Place("not installed")) for name in DISTRIBUTIONS if name not in installed}
    clone = {clone.name: clone for clone in itertools.islice(_clones(folders), 1)}
    return list({**installed, **absent, **clone}.values())


def here(catalog: Catalog, site: JobSite, environ: Mapping[str, str]) -> UserStack:
    """Return the stack of this environment and machine."""
    problems, interpreter = site.python.problems, Place(str(site.python.path))
    unread = tuple(
        Unread(UnreadKind.PACKAGE, problem, interpreter, "check another interpreter") for problem in problems
    )
    return build(
        catalog,
        [*statements(site.python, import_path(environ, Path.cwd()), catalog.packages), *_of_machine(site.machine)],
        closed=bool(site.python.packages) or not problems,
        label=environ.get(LABEL, ""),
        notes=problems if site.python.packages else (),
        unread=() if site.python.packages else unread,
    )


def _of_machine(machine: Machine) -> list[Statement]:
    facts = {DRIVER: machine.driver, SM: machine.sm, GPUS: len(machine.gpus or ())}
    return [Statement(name, str(value), Place("this machine")) for name, value in facts.items() if value]


def own_python(further: Iterable[str]) -> PythonEnvironment:
    """Return this interpreter and the `further` packages, from metadata alone: torch is not imported."""
    packages = {}
    listed = [name for name, component in components().items() if component.distribution or component.follows]
    aliases = [(name, *components()[name].aliases) for name in listed if name not in DISTRIBUTIONS]
    for names in (*DISTRIBUTIONS.values(), *aliases, *((name,) for name in further)):
        if version := next(_installed(names), None):
            packages[names[0]] = version
    path = Path(sys.executable)
    return PythonEnvironment(platform.python_version(), packages, path=path, torch_cuda=torch_cuda())


def import_path(environ: Mapping[str, str], folder: Path) -> list[str]:
    """Return the folders that a script started in `folder` imports from, before the installed packages."""
    return [str(folder), *(entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry)]


def torch_cuda() -> str | None:
    """Return the CUDA that torch is built for ("12.4"), "none" for a build without, None where torch does not say."""
    try:
        path = importlib.metadata.distribution("torch").locate_file("torch/version.py")
        text = read_regular_text(Path(str(path)))
    except (importlib.metadata.PackageNotFoundError, UnreadableError):
        return None
    match = re.search(r"^cuda\s*(?::[^=]+)?=\s*(?:['\"]([\d.]+)['\"]|None)", text, re.MULTILINE)
    return (match[1] or "none") if match else None


def _installed(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if is_version(version):  # of a damaged distribution it is None
            yield version


def _clones(folders: Iterable[str]) -> Iterator[Statement]:
    for folder in folders:
        path = Path(folder) / PACKAGE_INFO
        try:
            parts = dict(_PART.findall(read_regular_text(path)))
        except UnreadableError:
            continue
        if {"MAJOR", "MINOR", "PATCH"} <= parts.keys():
            version = f"{parts['MAJOR']}.{parts['MINOR']}.{parts['PATCH']}{parts.get('PRE_RELEASE', '')}"
            if is_version(version):
                yield Statement(MCORE, version, Place(str(path)))


def environment_input(
    catalog: Catalog, python: str | None, command: Sequence[str], variables: Iterable[str]
) -> CheckInput:
    """Return the stack of this environment, or of the interpreter `python`, and this machine, with a command's jobs.

    With what does not load in it. `variables` are those that preflights read. Raises MatrixError for an interpreter
    that can't be started.
    """
    own = python_of(python) if python else own_python(catalog.packages)
    host = job_site(os.environ, variables, own)
    checked = CheckInput(here(catalog, host, os.environ), command_jobs(command, os.environ), host=host)
    from matrix.read.elf.python_site import site_of

    return _with_report(checked, site_of(Path(python or sys.executable), os.environ), host.machine.sm or "")


def static_input(
    catalog: Catalog, python: str | None, root: Path | None, command: Sequence[str], variables: Sequence[str]
) -> CheckInput:
    """Return the stack of an environment, or of an unpacked image, and what does not load in it.

    No program of it is started. Of this machine the driver and the GPUs count. Raises MatrixError without an
    environment.
    """
    from matrix.read.elf.python_site import cuda_of, image_site, site_of

    if root and python:
        site = site_of(root / python.lstrip("/"), {}, root)
    else:
        site = image_site(root, {}) if root else site_of(Path(python or sys.executable), os.environ)
    version = site.minor if python or root else None
    packages = {name: text for name, text in site.versions.items() if name}
    described = PythonEnvironment(version, packages, path=site.program, torch_cuda=cuda_of(site) or None)
    host = replace(job_site(os.environ, variables, PythonEnvironment()), python=described)
    stated = statements(described, import_path(os.environ, Path.cwd()), catalog.packages)
    minor = [statement for statement in stated if statement.name != PYTHON or statement.version.count(".") > 1]
    stack = build(catalog, [*minor, *_of_machine(host.machine)], closed=True)
    checked = CheckInput(stack, command_jobs(command, os.environ), host=host)
    return _with_report(checked, site, host.machine.sm or "")


def _with_report(checked: CheckInput, site: PythonSite, sm: str) -> CheckInput:
    from matrix.read.elf.load_check import load_report

    return replace(checked, loading=load_report(site, sm))


def locked_inputs(catalog: Catalog, paths: Sequence[str], sm: str, lay: LayWheels) -> list[CheckInput]:
    """Return the stack of each lock file, and what of its wheels does not load, before anything is installed.

    The wheels are laid out in a temporary folder, and nothing of them is run. What has no wheel, and what can't be
    fetched, is unknown.
    """
    inputs = []
    for path in paths:
        declared = read([path])
        stack, jobs = declared_stack(catalog, declared)
        pins = {pin.name: pin for pin in declared.pins if pin.version}
        with scratch.temporary("wheels") as folder:
            report, unread = _read_wheels(Path(folder), pins, sm, lay)
        stack = replace(stack, unread=(*stack.unread, *unread))
        inputs.append(CheckInput(stack, jobs, (path,), loading=report))
    return inputs


def _read_wheels(
    folder: Path, pins: Mapping[str, Statement], sm: str, lay: LayWheels
) -> tuple[LoadReport | None, list[Unread]]:
    from matrix.read.elf.load_check import load_report
    from matrix.read.elf.python_site import site_of

    unread = []
    wanted = [f"{name}=={pin.version}" for name, pin in pins.items()]
    if not wanted:
        return None, []
    if lay(folder, wanted):
        for name, pin in pins.items():
            if problem := lay(folder, [f"{name}=={pin.version}"]):
                text = f"{name} {pin.version} was not read: {problem}"
                unread.append(Unread(UnreadKind.PACKAGE, text, pin.place, AFTERWARDS))
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HOME")}
    report = load_report(replace(site_of(Path(sys.executable), environ), folders=(folder,)), sm)
    findings = (replace(finding, path=_inside(finding.path, folder)) for finding in report.findings)
    return replace(report, findings=tuple(findings)), unread


def _inside(path: Path | None, folder: Path) -> Path | None:
    return path.relative_to(folder) if path and path.is_relative_to(folder) else path
