"""What a rank's body imports before it does anything else, read from its source: a forkserver child may hold it.

The body of `def body(rank): torch = megatron.start(rank); from megatron.core.transformer.moe import router; ...` first
does what matrix.kit.megatron.start does, then imports a module. Whatever else a statement does ends the list, so the
modules are imported in the order and the state in which the rank itself would import them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from matrix.catalog.limits import NO_LIMITS
from matrix.execution.ranks.job import RankJob
from matrix.provision.project import ROOT

START: Final = "megatron.start"  # a call of matrix.kit.megatron.start
CPU_DEVICE: Final = "matrix.kit.cpu_device:install"  # what it calls first at level cpu
CORE: Final = "megatron.core"
HELD: Final = ("megatron", "transformer_engine")  # what costs seconds
PRELOADED: Final = ("numpy", "torch")  # whose import changes nothing in a rank


def first_imports(job: RankJob) -> tuple[str, ...]:
    """Return the modules, and functions ("MODULE:FUNCTION"), that each rank imports or calls first; () if unknown.

    A rank imports them itself if it is fresh, started by mpirun, or limited in memory, or has variables of its own.
    """
    path, _, function = job.target.rpartition(":")
    if job.fresh or job.env or job.launcher != "torchrun" or job.limits != NO_LIMITS or not path.endswith(".py"):
        return ()
    return held(first_steps(Path(path), function), job)


def held(steps: Sequence[str], job: RankJob) -> tuple[str, ...]:
    """Return the steps up to the first that costs seconds; () if there is none, or a stand-in comes before it.

    Of megatron-core it is the package, which imports most of the rest: so most jobs of an overlay hold the same.
    """
    before: list[str] = []
    for step in steps:
        if step == START:
            if job.stand_ins or (job.device == "cpu" and "transformer_engine" not in job.hidden):
                return ()
            return (*before, *([CPU_DEVICE] if job.device == "cpu" else []), CORE)
        if step.partition(".")[0] in HELD:
            return (*before, CORE if f"{step}.".startswith(f"{CORE}.") else step)
        if step not in PRELOADED:
            before.append(step)
    return ()


@cache
def first_steps(path: Path, function: str) -> tuple[str, ...]:
    """Return the modules that a function in a file imports first, START among them; () if more happens at its import.

    A function that the file imports from the kit is read there.
    """
    body = ast.parse(path.read_text(encoding="utf-8")).body
    if not all(map(_defines, body)):
        return ()
    for statement in body:
        if isinstance(statement, ast.FunctionDef) and statement.name == function:
            return tuple(steps_of(statement.body))
        if isinstance(statement, ast.ImportFrom) and any(name.name == function for name in statement.names):
            file = ROOT.joinpath(*str(statement.module).split(".")).with_suffix(".py")
            return first_steps(file, function) if file.is_file() else ()
    return ()


def steps_of(body: Sequence[ast.stmt]) -> list[str]:
    """Return the steps of the first statements of a function, up to one that does something else."""
    steps: list[str] = []
    for statement in body:
        if isinstance(statement, ast.Import):
            steps += [name.name for name in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            steps.append(statement.module)
        elif ast.unparse(getattr(statement, "value", None) or statement).startswith(f"{START}("):
            steps.append(START)
        elif not _is_plain(statement):
            break
    return steps


def _defines(statement: ast.stmt) -> bool:
    """Return whether a statement of a module only imports, defines or assigns names."""
    guarded = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
    imports = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return guarded or isinstance(statement, imports) or _assigns(statement)


def _is_plain(statement: ast.stmt) -> bool:
    """Return whether a statement assigns values that call nothing."""
    return _assigns(statement) and not any(isinstance(node, ast.Call) for node in ast.walk(statement))


def _assigns(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring, or assigns to names only."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    names = [node for target in targets for node in getattr(target, "elts", [target])]
    return isinstance(statement, (ast.Assign, ast.AnnAssign)) and all(isinstance(node, ast.Name) for node in names)
