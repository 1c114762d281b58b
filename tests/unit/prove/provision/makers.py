"""Test data of matrix/prove/provision: wheels, source trees, clones, a uv that installs from a folder."""

from __future__ import annotations

import os
import subprocess
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.read.commands import CommandResult, run

PACKAGE_INFO = """MAJOR = {0}
MINOR = {1}
PATCH = {2}
PRE_RELEASE = '{3}'
VERSION = (MAJOR, MINOR, PATCH, PRE_RELEASE)
__version__ = '.'.join(map(str, VERSION[:3])) + ''.join(VERSION[3:])
__package_name__ = 'megatron_core'
"""


def make_wheel(
    folder: Path,
    version: str,
    *,
    name: str = "megatron_core",
    python: str = "",
    requires: Sequence[str] = (),
    files: Sequence[str] = (),
    code: str = "",
) -> Path:
    """Write a wheel as small as uv and zipfile accept; `files` are the paths of further, empty files."""
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Python: {python}"] if python else []
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("megatron/core/__init__.py", f"__version__ = {version!r}\n{code}")
        for path in files:
            file.writestr(path, "")
        file.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "megatron/core/__init__.py,,\n")
    return wheel


def make_tree(folder: Path, version: tuple[int, int, int, str] = (0, 9, 0, "rc0")) -> Path:
    """Write a Megatron-LM source tree: two modules, a package_info.py, a script outside the package."""
    core = folder / "megatron" / "core"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text("")
    (core / "package_info.py").write_text(PACKAGE_INFO.format(*version))
    (core / "model.py").write_text("LAYERS = 2\n")
    (folder / "pretrain_gpt.py").write_text("raise SystemExit('never run')\n")
    return folder


def make_clone(folder: Path) -> Path:
    """Write a clone with a tag, core_v0.9.0, and a branch, feature/x@2, whose model has one layer more."""
    make_tree(folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "Start")
    git(folder, "tag", "core_v0.9.0")
    git(folder, "checkout", "--quiet", "-b", "feature/x@2")
    (folder / "megatron/core/model.py").write_text("LAYERS = 3\n")
    commit(folder, "Add a layer")
    git(folder, "checkout", "--quiet", "main")
    return folder


HOSTILE = """
[core]
    fsmonitor = {run}
    hooksPath = {hooks}
    pager = {run}
    sshCommand = {run}
    gitProxy = {run}
    askPass = {run}
    alternateRefsCommand = {run}
    worktree = /nonexistent
[filter "evil"]
    smudge = {run}
    clean = {run}
    process = {run}
[diff]
    external = {run}
[diff "evil"]
    textconv = {run}
    command = {run}
[gpg]
    program = {run}
[log]
    showSignature = true
[alias]
    rev-parse = !{run}
    cat-file = !{run}
[pager]
    rev-list = {run}
    cat-file = {run}
[credential]
    helper = !{run}
[tar "tar"]
    command = {run}
[uploadpack]
    packObjectsHook = {run}
[protocol]
    allow = always
[extensions]
    partialClone = origin
[remote "origin"]
    url = {url}
    promisor = true
    partialclonefilter = blob:none
    uploadpack = {run}
"""


def make_hostile_clone(folder: Path, marker: Path) -> Path:
    """Write a clone as of `make_clone` that names a command, which creates `marker`, wherever git may run one.

    Its branch main has a signature, attributes, a link and a submodule; the file of its tag `partial` is missing.
    """
    make_clone(folder)
    run = folder.parent / "evil.sh"
    run.write_text(f"#!/bin/sh\ntouch {marker}\nexit 1\n")
    run.chmod(0o755)
    (folder / ".gitattributes").write_text("* filter=evil diff=evil export-subst\n")
    (folder / "megatron/core/link.py").symlink_to("/etc/passwd")
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{git(folder, 'rev-parse', 'HEAD')},megatron/sub")
    commit(folder, "Add attributes, a link and a submodule")
    signed = git(folder, "cat-file", "commit", "HEAD").replace(
        "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n -----END PGP SIGNATURE-----\n\n", 1
    )
    (folder.parent / "signed").write_text(signed + "\n")
    id = git(folder, "hash-object", "-t", "commit", "-w", str(folder.parent / "signed"))
    git(folder, "update-ref", "refs/heads/main", id)
    (folder / "megatron/core/model.py").write_text("MISSING = True\n")
    commit(folder, "Add a file that is missing")
    git(folder, "tag", "partial")
    missing = git(folder, "rev-parse", "partial:megatron/core/model.py")
    (folder / ".git/objects" / missing[:2] / missing[2:]).unlink()
    git(folder, "update-ref", "refs/heads/main", id)
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman", "pre-auto-gc"):
        (folder / ".git/hooks").mkdir(exist_ok=True)
        (folder / ".git/hooks" / hook).symlink_to(run)
    (folder / ".git/objects/info/alternates").write_text("/nonexistent\n")
    (folder / ".git/info/attributes").write_text("* filter=evil diff=evil\n")
    with (folder / ".git/config").open("a") as settings:
        settings.write(HOSTILE.format(run=run, hooks=folder / ".git/hooks", url=f"file://{folder}"))
    return folder


def commit(folder: Path, subject: str) -> str:
    """Commit everything and return the commit's id."""
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--message", subject)
    return git(folder, "rev-parse", "HEAD")


def git(folder: Path, *arguments: str) -> str:
    """Run git without user configuration and return its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**clean, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True)
class FolderUv:
    """A runner whose uv unpacks wheels from `wheels`, counting in `log`; every other command really runs.

    With `pythons` the wheels are for these minors alone.
    """

    wheels: Path
    log: Path
    seconds: float = 0.0  # duration of an installation
    pythons: tuple[str, ...] = ()

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        if "install" not in command:
            return run(command, environment=environment, seconds=seconds)
        with self.log.open("a") as log:
            log.write(" ".join(command) + "\n")
        time.sleep(self.seconds)
        if self.pythons and command[command.index("--python-version") + 1] not in self.pythons:
            return CommandResult(1, err="error: no solution\n  cause: because megatron-core has no usable wheels")
        target = Path(command[command.index("--target") + 1])
        for wanted in command:
            name = wanted.replace("-", "_").replace("==", "-")
            wheel = Path(wanted) if wanted.endswith(".whl") else self.wheels / f"{name}-py3-none-any.whl"
            if wheel.is_file():
                with zipfile.ZipFile(wheel) as file:
                    file.extractall(target)
                return CommandResult(0)
        return CommandResult(1, err="error: no solution\n  cause: https://user:secret@index.example/simple was asked")

    @property
    def installs(self) -> int:
        """Return how often packages were installed."""
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0
