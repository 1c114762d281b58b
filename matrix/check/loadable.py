"""Whether the compiled packages of an environment, an unpacked image or a lock load: nothing of them is started."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matrix.catalog.machine import PythonEnvironment
from matrix.catalog.model import Catalog
from matrix.catalog.place import Place
from matrix.catalog.stack import DRIVER, GPUS, PYTHON, SM
from matrix.check import environment, probe
from matrix.check.declaring import CheckInput, command_jobs, declared_stack, read
from matrix.check.files.declared import Statement, Unread, UnreadKind
from matrix.check.user_stack import build
from matrix.provision.commands import Runner, run
from matrix.store import scratch

if TYPE_CHECKING:
    from matrix.linking.load_report import LoadReport
    from matrix.linking.python_site import PythonSite

AFTERWARDS: Final = "install it, then check the environment: megatrix check --loadable"
SECONDS: Final = 3600.0  # for the wheels of a lock file with torch and CUDA: 3 GB


def environment_input(
    catalog: Catalog, python: str | None, command: Sequence[str], variables: Sequence[str]
) -> CheckInput:
    """Return the input of an environment, as environment.environment_input does, with what does not load in it."""
    checked = environment.environment_input(catalog, python, command, variables)
    from matrix.linking.python_site import site_of

    site = site_of(Path(python or sys.executable), os.environ)
    return _with_report(checked, site, (checked.host and checked.host.machine.sm) or "")


def static_input(
    catalog: Catalog, python: str | None, root: Path | None, command: Sequence[str], variables: Sequence[str]
) -> CheckInput:
    """Return the stack of an environment, or of an unpacked image, and what does not load in it.

    No program of it is started. Of this machine the driver and the GPUs count. Raises MatrixError without an
    environment.
    """
    from matrix.linking.import_process import cuda_of
    from matrix.linking.python_site import image_site, site_of

    if root and python:
        site = site_of(root / python.lstrip("/"), {}, root)
    else:
        site = image_site(root, {}) if root else site_of(Path(python or sys.executable), os.environ)
    version = site.minor if python or root else None
    packages = {name: text for name, text in site.versions.items() if name}
    described = PythonEnvironment(version, packages, path=site.program, torch_cuda=cuda_of(site) or None)
    host = replace(probe.job_site(os.environ, variables, PythonEnvironment()), python=described)
    facts = {DRIVER: host.machine.driver, SM: host.machine.sm, GPUS: len(host.machine.gpus or ())}
    stated = environment.statements(described, environment.import_path(os.environ, Path.cwd()), catalog.packages)
    values = [Statement(name, str(value), Place("this machine")) for name, value in facts.items() if value]
    minor = [statement for statement in stated if statement.name != PYTHON or statement.version.count(".") > 1]
    stack = build(catalog, [*minor, *values], closed=True)
    checked = CheckInput(stack, command_jobs(command, os.environ), host=host)
    return _with_report(checked, site, host.machine.sm or "")


def _with_report(checked: CheckInput, site: PythonSite, sm: str) -> CheckInput:
    from matrix.linking.load_report import load_report

    return replace(checked, loading=load_report(site, sm))


def locked_inputs(catalog: Catalog, paths: Sequence[str], sm: str, run: Runner = run) -> list[CheckInput]:
    """Return the stack of each lock file, and what of its wheels does not load, before anything is installed.

    The wheels are laid out in a temporary folder by uv, which runs nothing of them. What has no wheel, and what can't
    be fetched, is unknown.
    """

    inputs = []
    for path in paths:
        declared = read([path])
        stack, jobs = declared_stack(catalog, declared)
        pins = {pin.name: pin for pin in declared.pins if pin.version}
        with scratch.temporary("wheels") as folder:
            report, unread = _read_wheels(Path(folder), pins, sm, run)
        stack = replace(stack, unread=(*stack.unread, *unread))
        inputs.append(CheckInput(stack, jobs, (path,), loading=report))
    return inputs


def _read_wheels(
    folder: Path, pins: Mapping[str, Statement], sm: str, run: Runner
) -> tuple[LoadReport | None, list[Unread]]:
    from matrix.linking.load_report import load_report
    from matrix.linking.python_site import site_of

    unread = []
    wanted = [f"{name}=={pin.version}" for name, pin in pins.items()]
    if not wanted:
        return None, []
    if _lay(folder, wanted, run):
        for name, pin in pins.items():
            if problem := _lay(folder, [f"{name}=={pin.version}"], run):
                text = f"{name} {pin.version} was not read: {problem}"
                unread.append(Unread(UnreadKind.PACKAGE, text, pin.place, AFTERWARDS))
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HOME")}
    site = replace(site_of(Path(sys.executable), environ), folders=(folder,))
    report = load_report(site, sm)
    findings = (replace(finding, path=_inside(finding.path, folder)) for finding in report.findings)
    return replace(report, findings=tuple(findings)), unread


def _inside(path: Path | None, folder: Path) -> Path | None:
    return path.relative_to(folder) if path and path.is_relative_to(folder) else path


def _lay(folder: Path, wanted: Sequence[str], run: Runner) -> str:
    """Lay out the wheels of releases in a folder; return why not, "" where all are there."""
    from matrix.provision import overlays  # 0.02 s, for locks alone

    result = overlays.install_wheels(wanted, folder, run, seconds=SECONDS)
    if not result.code:
        return ""
    if overlays.NO_WHEEL.search(result.err):
        return "it has no wheel for this Python, and is compiled where it is installed"
    return re.sub(r"\s+", " ", result.complaint)
