"""The packages whose API a consuming package uses: Transformer Engine, megatron-core, torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from matrix.errors import MatrixError, closest


@dataclass(frozen=True)
class Provider:
    """A package that others call.

    `package` is its name on PyPI, `key` its name in JSON, `title` in text. `modules` matches its import names, `files`
    the paths of its recorded files; `unread` those whose content does not count, but whose modules exist.
    `version_paths` are the names that hold its version; `comparable`: it compares as packaging's do, with text, too.
    `sparse` matches files of which only the names that recorded packages use are recorded, and the compiled library
    that has further ones. `fix` says where its Python is.
    """

    package: str
    key: str
    title: str
    top: str
    modules: re.Pattern[str]
    files: re.Pattern[str]
    version_paths: frozenset[str]
    fix: str
    unread: re.Pattern[str] = re.compile("(?!)")
    sparse: re.Pattern[str] = re.compile("(?!)")
    comparable: bool = False

    def owns(self, module: str) -> bool:
        """Return whether a module belongs to it, by name."""
        return self.modules.fullmatch(module) is not None

    def holds(self, path: str) -> bool:
        """Return whether a surface needs a file."""
        return any(kind.fullmatch(path) for kind in (self.files, self.unread, self.sparse))

    def records(self, module: str) -> bool:
        """Return whether a surface has that module if the release has it."""
        return _is_of(self.files, module)

    def covers(self, path: str) -> bool:
        """Return whether a surface may have a path ("torch:distributed.checkpoint.load"): other uses do not count."""
        module = path.partition(":")[0]
        if module.partition(".")[0] != self.top:
            return True  # a compiled module beside the package
        return self._is_whole(path) or self.is_sparse(path)

    def is_sparse(self, path: str) -> bool:
        """Return whether a path is in a module of which only the names that are used are recorded."""
        is_own = re.split("[:.]", path, maxsplit=1)[0] == self.top
        return is_own and _is_of(self.sparse, self.top) and not self._is_whole(path)

    def _is_whole(self, path: str) -> bool:
        names = path.rstrip(":").replace(":", ".").split(".")
        return any(self.records(".".join(names[:size])) for size in range(1, len(names) + 1))

    @property
    def mention(self) -> bytes:
        """Return the text that every file which uses it contains."""
        return self.top.encode()

    @property
    def distributions(self) -> tuple[str, str]:
        """Return the spellings of its name that importlib.metadata accepts."""
        return self.package, self.package.replace("-", "_")


def _is_of(files: re.Pattern[str], module: str) -> bool:
    path = module.replace(".", "/")
    return any(files.fullmatch(file) for file in (f"{path}.py", f"{path}/__init__.py"))


TRANSFORMER_ENGINE: Final = Provider(
    package="transformer-engine",
    key="te",
    title="TE",
    top="transformer_engine",
    modules=re.compile(r"transformer_engine\w*(\..*)?"),
    # Its Python without the other frameworks, and its pybind11 sources.
    files=re.compile(
        r"transformer_engine/(?!(jax|paddle|tensorflow)(/|$))(.*\.py|(.*/)?(csrc/(.*/)?[^/]*|[^/]*pybind[^/]*)\.(cpp|h))"
    ),
    version_paths=frozenset({"transformer_engine:__version__"}),
    fix="its Python is in the wheel transformer_engine_cu12, and in most transformer_engine wheels",
)
MEGATRON_CORE: Final = Provider(
    package="megatron-core",
    key="mcore",
    title="megatron-core",
    top="megatron",
    modules=re.compile(r"megatron\.(core|training)(\..*)?"),
    files=re.compile(r"megatron/(core|training)/(?!.*\btests?/).*\.py"),
    version_paths=frozenset(
        {"megatron.core:__version__", "megatron:core.__version__", "megatron.core.package_info:__version__"}
    ),
    fix="name a megatron-core wheel or a Megatron-LM clone",
)
TORCH: Final = Provider(
    package="torch",
    key="torch",
    title="torch",
    top="torch",
    modules=re.compile(r"torch(\..*)?"),
    # Modules that megatron-core calls or extends: distributed checkpoints, FSDP, device meshes, tensors, optimizers.
    files=re.compile(
        r"torch/(distributed/(__init__|device_mesh|distributed_c10d|rendezvous|utils|remote_device|_functional_collectives"
        r"|(checkpoint|fsdp|_composable|tensor|_tensor|_shard|algorithms/_checkpoint)/.*)|optim/.*|utils/checkpoint)\.py"
    ),
    version_paths=frozenset({"torch:__version__", "torch:version.__version__", "torch.version:__version__"}),
    unread=re.compile(r"torch/distributed/[^/]*(/__init__)?\.py"),
    sparse=re.compile(r"torch/.*\.pyi?|torch/lib/libtorch_python\.\w+"),
    comparable=True,  # a TorchVersion
    fix="name a wheel of torch; those for macOS are the smallest",
)
PROVIDERS: Final = {provider.package: provider for provider in (TRANSFORMER_ENGINE, MEGATRON_CORE, TORCH)}


def provider_of(package: str) -> Provider:
    """Return the provider with that name. Raises MatrixError for another name."""
    for provider in PROVIDERS.values():
        if package in (*provider.distributions, provider.key):
            return provider
    raise MatrixError("no API of this package is recorded", got=package, expected=closest(package, PROVIDERS))
