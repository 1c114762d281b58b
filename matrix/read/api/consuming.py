"""Read the uses of a provider in the sources of a consuming package; nothing is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from matrix.ground.catalog.regular_file import within_limits
from matrix.read.api.definition import absolute, module_name, parsed, uncollected
from matrix.read.api.flow import Reaches, Recorder
from matrix.read.api.guard import Guard
from matrix.read.api.provider import MEGATRON_CORE, PROVIDERS, TRANSFORMER_ENGINE, Calls, Provider
from matrix.read.api.scope import BodyLocation, FunctionDefinition, Names, ReturnValue
from matrix.read.api.statements import BodyVisitor
from matrix.read.api.value import UNKNOWN, Choice, InPackage, Reference, single

CONFIG = re.compile(rb"^class \w*Config\b", re.MULTILINE)  # its checks hold wherever such a configuration is used
IMPORTS = re.compile(
    r"^[ \t]{0,99}from[ \t]{1,99}([.\w]{1,512})[ \t]{1,99}import[ \t]{1,99}(\([^)]{0,4000}\)|[^\n#]*)", re.MULTILINE
)


def is_part(path: str, consumer: str = MEGATRON_CORE.package) -> bool:
    """Return whether a file of a package is read: of Megatron-LM megatron.core, megatron.training, top-level files."""
    return PROVIDERS[consumer].reads.fullmatch(path) is not None


@uncollected()
def read_calls(
    files: Mapping[str, bytes],
    version: str,
    origin: Mapping[str, str] | None = None,
    provider: Provider = TRANSFORMER_ENGINE,
    *,
    consumer: str = MEGATRON_CORE.package,
    part: Callable[[str], bool] = is_part,
) -> Calls:
    """Return the uses of a provider in `files` (path -> content) that `part` selects.

    Raises SyntaxError on a broken file.
    """
    package = _Package({path: content for path, content in files.items() if part(path)}, provider)
    package.read_all()
    with within_limits(consumer):
        uses = dict.fromkeys(package.reaches.finish())
    order = sorted(uses, key=lambda use: (use.site.path, use.site.line, use.path, use.kind))
    return Calls(version, tuple(order), dict(origin or {}), consumer, provider.package)


class _Package:
    """The modules of the consuming package, each read on first use."""

    def __init__(self, files: Mapping[str, bytes], provider: Provider) -> None:
        self._files, self.provider = files, provider
        self._paths = {module_name(path): path for path in sorted(files)}
        self._packages = {name.rsplit(".", depth)[0] for name in self._paths for depth in range(name.count(".") + 1)}
        self._read: dict[str, BodyVisitor] = {}
        self.reaches = Reaches()

    def read_all(self) -> None:
        """Read every module that uses TE; functions last, since they run later than all imports."""
        users = [name for name in sorted(self._paths) if self.mentions(name) or CONFIG.search(self._source(name))]
        for module in users:
            self._module(module)
        # Files without a mention of TE may use names of TE that another module re-exports.
        users += [module for module in sorted(self._paths) if module not in users and self._imports_te_name(module)]
        for module in users:
            with within_limits(self._paths[module]):
                self._module(module).read_functions(self._module(module).completes)
        private = {draft.function.name.rpartition(".")[2] for draft in self.reaches.drafts if draft.function}
        unread = b"\n".join(self._source(module) for module in sorted(self._paths) if module not in users)
        self.reaches.handed_on |= {name for name in private if name.encode() in unread}

    def mentions(self, module: str) -> bool:
        return module in self._paths and self.provider.mention in self._source(module)

    def is_module(self, module: str) -> bool:
        return module in self._packages

    def look_up(self, module: str, name: str) -> Choice:
        """Return the values of a module's `name`."""
        if module in self._paths and name:
            choice = self._module(module).names.own.get(name)
            if choice is not None and choice != single(InPackage(module, name)):
                return choice
        return single(InPackage(f"{module}.{name}")) if self.is_module(f"{module}.{name}") else UNKNOWN

    def exported(self, module: str) -> list[str]:
        """Return the names that `import *` takes from a module."""
        names = self._module(module).names.own if module in self._paths else {}
        return [name for name in names if not name.startswith("_") and "." not in name]

    def loads(self, module: str) -> Guard:
        """Return the guard under which importing a module succeeds; True while it is being read."""
        return self._module(module).completes if self.mentions(module) else True

    def returned(self, routine: FunctionDefinition, names: Names, depth: int) -> ReturnValue:
        """Return the return value of a function whose parameters are `names`, that many calls deep."""
        return BodyVisitor(self, routine.location, names, depth=depth).read(routine.node.body).outcome()

    def _source(self, module: str) -> bytes:
        return self._files[self._paths[module]]

    def _module(self, module: str) -> BodyVisitor:
        """Read a module without its functions; during a circular import, return its state so far."""
        if module not in self._read:
            path = self._paths[module]
            tree = parsed(self._files[path], path)
            imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
            postponed = any(alias.name == "annotations" for node in imports for alias in node.names)
            location = BodyLocation(module, path, path.endswith("__init__.py"), postponed=postponed)
            body = self._read[module] = BodyVisitor(self, location, Names(), Recorder(self.reaches))
            with within_limits(path):
                body.read(tree.body)
            for node in ast.walk(tree) if b"global " in self._files[path] else ():
                for name in node.names if isinstance(node, ast.Global) else ():
                    body.names.reassign(name)
        return self._read[module]

    def _imports_te_name(self, module: str) -> bool:
        """Return whether a module imports a name of TE from a module that re-exports it."""
        is_package = self._paths[module].endswith("__init__.py")
        return any(
            not self._te_names(absolute(source, module, is_package)).isdisjoint(re.findall(r"\w+", names))
            for source, names in IMPORTS.findall(self._source(module).decode("utf-8", "replace"))
        )

    def _te_names(self, module: str) -> set[str]:
        names = self._read[module].names.own if module in self._read else {}
        values = ((name, value) for name, choice in names.items() for _, value in choice)
        return {name for name, value in values if isinstance(value, Reference) and not value.path.endswith(":")}
