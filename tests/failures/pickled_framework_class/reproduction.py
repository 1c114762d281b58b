"""Save a checkpoint whose common state holds an object of a framework; read it where the framework lacks the class.

The framework is a module of this reproduction: a file that only the writer has, or has with its class. Saving and
loading are megatron-core's own. ms-swift put objects of its classes into the arguments that Megatron-LM saves.
"""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

CLASS = "class {name}:\n    kind = 'gpt'\n"


def write(rank: Rank, *, module: str, name: str, reader: str) -> str:
    """Save a checkpoint with an instance of the class among its arguments; return the class."""
    from megatron.core import dist_checkpointing

    megatron.start(rank)
    framework = provide(rank.workdir / "framework", module, CLASS.format(name=name))
    folder = rank.checkpoint / "model"
    folder.mkdir()
    state = {"iteration": 1, "args": Namespace(hidden_size=8, model_meta=getattr(framework, name)())}
    with megatron.saving():
        dist_checkpointing.save(sharded_state_dict=state, checkpoint_dir=str(folder))
    megatron.stop()
    return f"{module}.{name}"


def read(rank: Rank, *, module: str, name: str, reader: str) -> str:
    """Load the checkpoint; return the class of the object.

    `reader` is what the reader has of the framework: "nothing", "package" (without the module), "module" (without the
    class) or "class". Raises what megatron-core raises.
    """
    from megatron.core import dist_checkpointing

    megatron.start(rank)
    if reader != "nothing":
        beside = f"{module}_2" if reader == "package" else module
        provide(rank.workdir / "framework", beside, CLASS.format(name=name) if reader == "class" else "")
    loaded = dist_checkpointing.load(sharded_state_dict={}, checkpoint_dir=str(rank.checkpoint / "model"))
    megatron.stop()
    return type(loaded["args"].model_meta).__name__


def provide(folder: Path, module: str, source: str) -> Any:
    """Write a module, with the packages that it is in, put it on sys.path, and return it."""
    *packages, last = module.split(".")
    path = folder
    for package in packages:
        path = path / package
        path.mkdir(parents=True)
        (path / "__init__.py").touch()
    path.mkdir(exist_ok=True)
    (path / f"{last}.py").write_text(source, encoding="utf-8")
    sys.path.insert(0, str(folder))
    return importlib.import_module(module)
