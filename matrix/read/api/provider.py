"""The packages whose API others use, as providers.toml lists them (Transformer Engine, torch), and their uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import matrix.ground.catalog
from matrix.ground.catalog.schema import read_toml
from matrix.ground.errors import MatrixError, closest
from matrix.read.api.guard import Guard

TABLE: Final = Path(matrix.ground.catalog.__file__).parent / "facts" / "providers.toml"
NOTHING: Final = "(?!)"


@dataclass(frozen=True, eq=False)
class Provider:
    """A package that others call. Providers are equal if they are the same one.

    `package` is its name on PyPI, `key` its name in JSON, `title` in text. `modules` matches its import names, `files`
    the paths of its recorded files; `unread` those whose content does not count, but whose modules exist.
    `version_paths` are the names that hold its version; `comparable`: it compares as packaging's do, with text, too.
    `sparse` matches files of which only the names that recorded packages use are recorded, and the compiled library
    that has further ones. `consumers` are the recorded packages that call it, `reads` matches its files that are read
    as a consumer. `minimum_checks` and `version_getters` are functions of megatron-core that projects import: whether
    it has a version at least, and its parsed version. `fix` says where its Python is, `install` how a release is
    installed.
    """

    package: str
    key: str
    title: str
    top: str
    modules: re.Pattern[str]
    files: re.Pattern[str]
    unread: re.Pattern[str]
    sparse: re.Pattern[str]
    reads: re.Pattern[str]
    version_paths: Sequence[str]
    consumers: Sequence[str] = ()
    minimum_checks: tuple[str, ...] = ()
    version_getters: tuple[str, ...] = ()
    comparable: bool = False
    fix: str = "name a wheel, a source folder, or PATH@REV of a clone"
    install: str = 'python -m pip install "{package}=={version}"'

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
    def is_whole(self) -> bool:
        """Return whether whole modules are recorded, so that the uses of any project can be compared."""
        return self.files.pattern != NOTHING

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


def providers_in(rows: Iterable[Mapping[str, Any]]) -> dict[str, Provider]:
    """Return the providers of a table by package: a row states what differs from a package that is one module.

    Raises MatrixError for a row with an unknown key or a broken pattern.
    """
    providers = {}
    for row in rows:
        package = row["package"]
        top = row.get("top", package.replace("-", "_"))
        patterns = {"modules": rf"{top}(\..*)?", "files": rf"{top}/.*\.py", "unread": NOTHING, "sparse": NOTHING}
        texts = {"key": package, "title": package, "top": top, "version_paths": [f"{top}:__version__"], **row}
        try:
            compiled = {name: re.compile(row.get(name, text)) for name, text in {**patterns, "reads": NOTHING}.items()}
            providers[package] = Provider(**{**texts, **compiled})
        except (TypeError, re.error) as error:
            raise MatrixError("not a provider", where=f"{TABLE.name}: {package}", got=error) from None
    return providers


PROVIDERS: Final = providers_in(read_toml(TABLE)["provider"])
TRANSFORMER_ENGINE: Final = PROVIDERS["transformer-engine"]
MEGATRON_CORE: Final = PROVIDERS["megatron-core"]
TORCH: Final = PROVIDERS["torch"]


def provider_of(package: str) -> Provider:
    """Return the provider with that name. Raises MatrixError for another name."""
    for provider in PROVIDERS.values():
        if package in (*provider.distributions, provider.key):
            return provider
    raise MatrixError("no API of this package is recorded", got=package, expected=closest(package, PROVIDERS))


RAISED: Final = ("ImportError", "AttributeError", "TypeError", "AssertionError", "RuntimeError", "ValueError")
# The exceptions that a break raises, and the handlers that catch each beside those of its own name and of Exception.
CATCHES: Final[Mapping[str, tuple[str, ...]]] = {"ModuleNotFoundError": ("ImportError",), **dict.fromkeys(RAISED, ())}


class Site(NamedTuple):
    """The place of a line: path from the root of the package, 1-based line, name of the enclosing function."""

    path: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        line = f"{self.path}:{self.line}"
        return f"{line} {self.function}" if self.function else line


NOWHERE: Final = Site("", 0)


class Arguments(NamedTuple):
    """The arguments of a call, by name.

    `positional` holds the name of each variable or attribute that is passed, "" for any other expression. `keywords`
    holds (name, guard): a keyword collected in a dictionary is passed only where its guard holds, too. `starred` /
    `open_keywords`: unknown arguments follow by `*` / `**`.
    """

    positional: tuple[str, ...] = ()
    keywords: tuple[tuple[str, Guard], ...] = ()
    starred: bool = False
    open_keywords: bool = False


class Use(NamedTuple):
    """One use of the provider.

    `path` is "module:attribute.attribute". `kind` is "import", "attribute", "call", "method" (a call to a method of an
    object, or a read of its private attribute; its class is known by an annotation, a constructor or isinstance),
    "override" (a method of a subclass), "patch" (an assignment to something of the provider) or "end" (the line raises
    the exception `effect` because `path` is missing, which was caught before); `signature` is that of the override or
    the patch. `bound`: the class of the object, or super, from which the last attribute is read.
    `swallowed` lists the exceptions that the surrounding code catches and does not raise again, `effect` is the
    assignment that it makes instead ("fused_permute = None"); `fallback`: it then uses another part of the provider,
    which is a use of its own. `refused` lists the exceptions that it replaces by an error of its own; an end has one if
    it raises itself. `unpacks`: the number of names that a call's result is unpacked into. A tuple, since a release has
    some hundred.
    """

    kind: str
    path: str
    site: Site
    guard: Guard  # the complete guard of the line
    here: Guard = True  # its part from the function itself
    arguments: Arguments | None = None
    bound: str = ""
    swallowed: tuple[str, ...] = ()
    effect: str = ""
    fallback: bool = False
    refused: tuple[str, ...] = ()
    signature: str = ""
    unpacks: int = 0


@dataclass(frozen=True)
class Calls:
    """All uses of a provider in one release of a consuming package, by call site.

    `fitting`: paths of further uses, which exist in every recorded release of the provider or can't be judged in any.
    """

    version: str
    uses: Sequence[Use] = ()
    origin: Mapping[str, str] = field(default_factory=dict)  # tag, commit, wheel
    consumer: str = "megatron-core"
    provider: str = "transformer-engine"
    fitting: Sequence[str] = ()

    @cached_property
    def ends(self) -> Mapping[str, Sequence[Use]]:
        """The exceptions in which missing paths end, by path; the checks of configurations come first, as in a run."""
        ends: dict[str, list[Use]] = {}
        for use in sorted(self.uses, key=lambda use: not use.site.function.endswith("__post_init__")):
            if use.kind == "end":
                ends.setdefault(use.path, []).append(use)
        return ends

    @cached_property
    def catching(self) -> frozenset[tuple[str, str]]:
        """The paths whose failure is caught, with the file: what a file catches itself is not that of another."""
        return frozenset((use.path, use.site.path) for use in self.uses if use.swallowed)

    @cached_property
    def forms(self) -> Mapping[Use, Sequence[int]]:
        """The forms of the uses, each with the places of its uses.

        A form is what decides whether a use fits: no line, no guards; a keyword that is passed under a guard has False.
        """
        forms: dict[Use, list[int]] = {}
        for index, use in enumerate(self.uses):
            if use.kind == "end":
                continue
            arguments = use.arguments
            if arguments:
                arguments = arguments._replace(keywords=tuple((name, on is True) for name, on in arguments.keywords))
            form = Use(use.kind, use.path, NOWHERE, True, True, arguments, use.bound)
            form = form._replace(signature=use.signature, unpacks=use.unpacks)
            forms.setdefault(form, []).append(index)
        return forms
