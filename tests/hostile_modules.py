"""A folder that runs its code where anything of it is imported or started: each piece leaves a line in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

from matrix.prove.provision.project import ROOT
from tests.founding import NORM, SAVE

COMMON: Final = ("tox", "uv", "pytest", "torch", "packaging", "virtualenv", "megatron", "transformer_engine", "hostile")
LOADED: Final = ("sitecustomize", "usercustomize", "conftest", "toxfile", "setup", "reproduction", "preflight")
PROGRAMS: Final = ("git", "make", "mpirun", "nvidia-smi", "podman", "python", "python3", "srun")
HOOKS: Final = ("post-checkout", "pre-commit", "reference-transaction", "fsmonitor")
SETTINGS: Final = {
    "tox.ini": "[tox]\nrequires = hostile\n[testenv]\ncommands = {program}\n",
    "pytest.ini": "[pytest]\naddopts = -p hostile\n",
    "setup.cfg": "[tool:pytest]\naddopts = -p hostile\n",
    "pyproject.toml": '[tool.uv]\nindex-url = "{program}"\n[tool.pytest.ini_options]\naddopts = "-p hostile"\n',
    "uv.toml": "this is no TOML: uv names the file where it reads it\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    ".git/config": "[core]\n\tfsmonitor = {program}\n\tsshCommand = {program}\n\tpager = {program}\n",
    "Makefile": "all:\n\t{program}\n",
    ".pdbrc": "import hostile\n",
    "requirements.txt": "-r more.txt\ntorch==2.4.1\n",
    "Dockerfile": "FROM a\nRUN {program}\n",
    "train.sh": "#!/bin/sh\n{program}\npython pretrain_gpt.py $({program})\n",
    "train.log": "Traceback (most recent call last):\n$({program})\n",
}


# The exit status and the arguments of each command in the folder; {python} is an interpreter, {out} another folder.
WITHIN: Final = f"base==no-torch and failure=={NORM}"
HERE: Final = f"failure=={NORM} and te==1.12.0 and mcore==0.9.0"
BISECT: Final = ("--axis", "mcore", "--base", "torch-2.4.0", "--good", "0.7.0", "--bad", "0.8.0")
COMPARED: Final = ("torch-2.4.0/mcore-0.7.0/te-none/driver-none", "torch-2.4.0/mcore-0.8.0/te-none/driver-none")
ONE: Final = f"failure=={SAVE} and mcore==0.8.0"
QUICK: Final = (
    (0, ("plan", "--within", WITHIN)),
    (0, ("run", "--here", "--no-cache", "--select", HERE, "--out", "{out}")),
    (1, ("check", "torch-2.4.0/mcore-0.8.0/te-none/driver-none")),
    (2, ("build", "no-such-image")),
    (
        2,
        ("bundle", "--level", "cpu", "--python", "3.11", "--base", "torch-2.13.0", "--select", ONE, "--out", "{out}/b"),
    ),
    (0, ("completion", "bash")),
    (0, ("fit", "torch=2.9.1", "--offline")),
    (2, ("parity", "--mcore", "no-such-core", "--layout", "tp=2", "--out", "{out}/none")),
    (2, ("debug", "no-such-case")),
    (3, ("check",)),
    (3, ("check", "--python", "{python}")),
    (3, ("check", "requirements.txt", "Dockerfile", "train.sh", "pyproject.toml")),
    (2, ("check", "--checkpoint", ".")),
    (0, ("check", "--", "true")),
    (1, ("match", "train.log")),
    (0, ("show", "te=2.11")),
    (0, ("contract", "--consumer", ".")),
    (2, ("contract", "--consumer", ".@HEAD")),
    (2, ("surface", "record", ".")),
    (2, ("surface", "record", ".@HEAD")),
    (2, ("bisect", *BISECT, "--out", "{out}", "--", "true")),
    (2, ("compare", *COMPARED, "--out", "{out}", "--", "true")),
    (0, ("sources", "list")),
    (2, ("sources", "fetch")),
    (2, ("catalog", "new", NORM)),
    (0, ("catalog", "check", NORM)),
    (2, ("catalog", "verify", "no-such-failure")),
    (2, ("catalog", "keep", "no-such-run", "--out", "{out}/none")),
    (0, ("catalog", "list")),
    (0, ("catalog", "export")),
    (2, ("report", "--out", "{out}/none")),
)
LONG: Final = ((0, ("surface", "pairs", "-o", "{out}/pairs.json.gz")),)  # 10 s
# No package index, so that nothing is made: uv starts, reads its settings and fails.
OFFLINE: Final = {"UV_DEFAULT_INDEX": "file:///nonexistent", "UV_INDEX": "", "UV_OFFLINE": "1"}


def start(words: Sequence[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command as its script on PATH does, in the hostile folder; its cache and output are beside that."""
    beside = folder.parent
    script = beside / "megatrix"
    text = (
        f"#!{sys.executable}\nimport sys\nsys.path.append({str(ROOT)!r})\n"
        "from matrix.cli.main import main\nsys.exit(main())\n"
    )
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    own = {"MEGATRIX_CACHE": str(beside / "cache")}
    own |= {"MEGATRIX_MEGATRON_LM_URL": "file:///nonexistent", "MEGATRIX_TRANSFORMER_ENGINE_URL": "file:///nonexistent"}
    (beside / "out").mkdir(exist_ok=True)
    line = [word.format(python=sys.executable, out=beside / "out") for word in words]
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MEGATRIX_"))}
    return subprocess.run(
        [str(script), *line],
        cwd=folder,
        env={**settings, **own, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def make(folder: Path, executed: Path) -> Path:
    """Fill a folder, whose every piece appends its name to the file `executed` when it runs; return the folder.

    The modules have the names of the standard library's, of all that is installed here, and of this project's.
    """
    own = [path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"]
    for name in {*sys.stdlib_module_names, *packages_distributions(), *own, *COMMON, *LOADED}:
        if name.isidentifier():
            _module(folder, name, executed)
    for name in (*PROGRAMS, *(f".git/hooks/{hook}" for hook in HOOKS), "program"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {name} >> '{executed}'\n", encoding="utf-8")
        path.chmod(0o755)
    for name in ("objects", "refs"):
        (folder / ".git" / name).mkdir(parents=True)
    for name, text in SETTINGS.items():
        (folder / name).write_text(text.replace("{program}", str(folder / "program")), encoding="utf-8")
    return folder


def _module(folder: Path, name: str, executed: Path) -> None:
    """Write a package, which comes before a module of its name, with what `python -m NAME` starts."""
    text = f"open({str(executed)!r}, 'a').write('{name}\\n')\n"
    paths: Iterable[Path] = (folder / name / "__init__.py", folder / name / "__main__.py")
    for path in (folder / f"{name}.py",) if name in LOADED else paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
