"""The API of one release of a provider: modules, functions, classes and values; lookups follow re-exports.

An entry of a module is recorded as
    "(a,b=1)"            a function and its signature
    ">module:name"       a name of another module of the package (">module:" is a module)
    "="                  a value
    "=?"                 True or False, which functions of the module change
    "~"                  something from outside the package, or unknown
    "!"                  nothing: of a module whose names are recorded where they are used, one that is missing
    {"bases": [...], "members": {...}}   a class; bases are written like entries; "own": attributes of its instances
    [entry, ...]         alternatives from different branches
and a member of a class as "(self,a)", "c(cls,a)" (classmethod), "s(a)" (staticmethod), "=" or "~". "d(self,a)" is a
dataclass's constructor without the fields of its bases in other modules.
The key "sys.modules" of a module states that it adds modules there, so those inside it are unknown.
The key "*" of a module lists the modules outside the package that it imports with `import *`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from matrix.read.api.binding import BindingError, CallSignature, bind, constructor_text, parse_signature
from matrix.read.api.provider import provider_of

Entry: TypeAlias = Any  # JSON, as above
Instance: TypeAlias = "list[str]"  # [class, attribute, ...]
Refusal: TypeAlias = "list[str]"  # [exception, parameter without which it is raised; "" is always]
MISSING = "!"
STATE = "=?"
REDIRECTS = "sys.modules"
ANONYMOUS = "forward"  # `layer(hidden_states=...)` calls an object, whose class has this method
FEWEST = 2  # arguments by which a call of an object, or of such a method, is recognised
OF_MODULES = frozenset(dir(ModuleType("any"))) | {"__file__", "__path__"}  # what every module has
OF_CLASSES = frozenset(dir(type)) - {"__init__", "__new__", "__call__"}


class OwnCall(NamedTuple):
    """A call that the provider itself makes. `module` is the place of its module in their sorted names.

    `owner` is the class in that module whose method calls one of its own, through `self`; "" for another receiver.
    """

    module: int
    positional: int
    keywords: tuple[str, ...]
    starred: bool
    open_keywords: bool
    owner: str = ""

    def __str__(self) -> str:
        """Return the recorded form: "MODULE POSITIONALS KEYWORD ... * ** .OWNER"."""
        unknown = ["*"] * self.starred + ["**"] * self.open_keywords + [f".{self.owner}"] * bool(self.owner)
        return " ".join([str(self.module), str(self.positional), *self.keywords, *unknown])

    def problems(self, signature: CallSignature, *, bound: bool) -> list[BindingError]:
        """Return why it does not bind to a signature."""
        starred, open_keywords = self.starred, self.open_keywords
        return bind(
            signature, self.positional, self.keywords, bound=bound, starred=starred, open_keywords=open_keywords
        )

    def may_be_of(self, original: CallSignature, *, bound: bool) -> bool:
        """Return whether it binds to named parameters of a callable, not to *args or **kwargs."""
        fits = self.positional + bound <= len(original.slots) and all(map(original.takes, self.keywords))
        return fits and not self.problems(original, bound=bound)


@lru_cache(maxsize=65536)
def parse_call(text: str) -> OwnCall:
    """Read the recorded form of a call."""
    module, positional, *words = text.split()
    keywords = tuple(word for word in words if word[0] not in "*.")
    owner = words[-1].removeprefix(".") if words and words[-1][0] == "." else ""
    return OwnCall(int(module), int(positional), keywords, "*" in words, "**" in words, owner)


@dataclass(frozen=True)
class ResolvedPath:
    """A path that exists.

    `callables` holds (signature, bound) for each possible definition; empty if the signature is unknown. `bound`:
    Python supplies the first argument. `name` is its name in Python's error messages. `returns`: the size of the tuple
    that it returns, 0 if that is not fixed. `refuses`: the exceptions that its first lines certainly raise.
    """

    name: str
    callables: tuple[tuple[CallSignature, bool], ...] = ()
    returns: int = 0
    refuses: Sequence[Refusal] = field(default=(), hash=False)  # lists


@dataclass(frozen=True)
class Absent:
    """A path that is missing.

    `what` is "module", "name" (of a module: an import fails), "member" (of a class) or "object" (an instance).
    `sure` is False where a base outside the package may define it.
    """

    what: str
    owner: str
    name: str
    sure: bool = True


_Found: TypeAlias = ResolvedPath | Absent | None  # None: the surface does not record it


class _Target(NamedTuple):
    """The end of a path: an entry, the module that defines it, the entry's own name, and the class it belongs to."""

    entry: Entry
    module: str
    name: str
    owner: str = ""

    @property
    def title(self) -> str:
        """Return its name in Python's error messages."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


_Step: TypeAlias = list[_Target] | Absent | None  # the possible ends of a path; None if one is not recorded
_Definition: TypeAlias = tuple[_Target, str, bool]  # target, signature, bound


@dataclass(frozen=True, eq=False)
class Surface:
    """The API of one release. Lookups are cached; the data never changes.

    `dormant` are the modules that an import of the package does not load: they can be imported, but are no attributes
    of their parents. `called` has the calls that the provider itself makes (OwnCall), one of each form, by the
    callee's last name; `instances` the module-level objects whose attributes are known, by path; `returned` the sizes
    of the tuples that functions always return, by path; `refused` what their first lines raise.
    """

    version: str
    modules: Mapping[str, Mapping[str, Entry]]
    dormant: frozenset[str] = frozenset()
    origin: Mapping[str, str] = field(default_factory=dict)  # tag, commit, wheel
    package: str = "transformer-engine"
    called: Mapping[str, Sequence[str]] = field(default_factory=dict)
    instances: Mapping[str, Instance] = field(default_factory=dict)
    returned: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, Sequence[Refusal]] = field(default_factory=dict)
    _ends: dict[str, _Step] = field(default_factory=dict, init=False, repr=False)
    _resolved: dict[tuple[str, bool], _Found] = field(default_factory=dict, init=False, repr=False)
    _followed: dict[str, list[_Target]] = field(default_factory=dict, init=False, repr=False)
    _calls: dict[str, list[OwnCall]] = field(default_factory=dict, init=False, repr=False)

    def lookup(self, path: str, *, via_instance: bool = False) -> _Found:
        """Look up `path` ("module:attribute.attribute"); None if the surface does not record it.

        `via_instance`: the last attribute is read from an instance (or super()), so Python binds it.
        """
        key = (path, via_instance)
        if key not in self._resolved:
            self._resolved[key] = self._lookup(path, via_instance)
        return self._resolved[key]

    def offers(self, path: str) -> bool | None:
        """Return whether `path` exists; None if the surface does not record it."""
        target = self.lookup(path)
        return None if target is None else isinstance(target, ResolvedPath)

    def takes(self, path: str, parameter: str) -> bool | None:
        """Return whether the callable at `path` has that parameter; None if unknown, or if its definitions differ."""
        target = self.lookup(path)
        callables = target.callables if isinstance(target, ResolvedPath) else ()
        results = {signature.takes(parameter) for signature, _ in callables}
        return results.pop() if len(results) == 1 else None

    def changes(self, path: str) -> bool:
        """Return whether functions of its own module change the truth value at `path`."""
        targets = self._reached(path)
        return isinstance(targets, list) and any(target.entry == STATE for target in targets)

    def calls_of(self, path: str) -> list[OwnCall]:
        """Return the provider's own calls that may be to the method or function at `path`."""
        if path not in self._calls:
            name = path.rpartition(":")[2].rpartition(".")[2]
            # Of a class, another package than its own constructs only that of a spec.
            spec = " submodules" if name == "__init__" else ""
            calls = [parse_call(text + spec) for text in self.called.get(name, ())]
            if name == ANONYMOUS:
                calls = [call for call in calls if call.positional + len(call.keywords) >= FEWEST]
            target = self.lookup(path, via_instance=True) if calls else None
            callables = target.callables if isinstance(target, ResolvedPath) else ()
            classes = self._reached(path.rpartition(".")[0]) if calls else None
            lineage = self._lineage(classes) if isinstance(classes, list) else ()
            owners = {(target.module, target.name) for target in lineage}
            self._calls[path] = [
                call
                for call in calls
                if any(call.may_be_of(original, bound=bound) for original, bound in callables)
                and (not call.owner or (self.caller(call), call.owner) in owners)
            ]
        return self._calls[path]

    def _lineage(self, targets: Sequence[_Target]) -> Iterator[_Target]:
        """Yield the classes among targets and their bases, as far as they are recorded."""
        pending = [*targets]
        for target in pending:
            if isinstance(target.entry, dict):
                yield target
                pending += self._parents(target)

    @cached_property
    def _module_names(self) -> Sequence[str]:
        return sorted(self.modules)

    def caller(self, call: OwnCall) -> str:
        """Return the name of the module that makes a call."""
        return self._module_names[call.module]

    def _lookup(self, path: str, via_instance: bool) -> _Found:
        module, _, attributes = path.partition(":")
        targets = self._reached(path)
        if isinstance(targets, list):
            return self._resolve(targets, via_instance) if attributes else ResolvedPath(module)
        owner, is_member, name = attributes.rpartition(".")
        if is_member and name == "__init__" and isinstance(targets, Absent) and targets.what == "member":
            return None  # it has the one of object
        owners = self._reached(f"{module}:{owner}") if via_instance and is_member and targets is None else None
        for target in owners if isinstance(owners, list) else ():
            if isinstance(target.entry, dict) and self._step(target, name, lenient=False) is None:
                return self._of_object(target, name)
        return targets

    def _reached(self, path: str) -> _Step:
        if path not in self._ends:
            module, _, attributes = path.partition(":")
            owner, _, name = attributes.rpartition(".")
            if name:
                owners = self._reached(f"{module}:{owner}")
                # An import statement also loads a module that nothing else imports.
                steps: list[_Step] = [owners]
                if isinstance(owners, list):
                    steps = [self._step(target, name, lenient=not owner) for target in owners]
                targets = [target for step in steps if isinstance(step, list) for target in step]
                self._ends[path] = None if None in steps else targets or steps[-1]
            elif module in self.modules:
                self._ends[path] = [_module(module)]
            else:
                self._ends[path] = self._missing(module)
        return self._ends[path]

    def _missing(self, module: str) -> Absent | None:
        """Return the first package of a module, or the module, that the release lacks; None if that is not recorded."""
        names = module.split(".")
        if names[0] not in {name.partition(".")[0] for name in self.modules}:
            return None
        size = next(size for size in range(1, len(names)) if ".".join(names[: size + 1]) not in self.modules)
        package = self.modules[".".join(names[:size])]
        is_missing = package.get(names[size]) == MISSING
        is_missing = is_missing or (REDIRECTS not in package and provider_of(self.package).records(module))
        return Absent("module", "", ".".join(names[: size + 1])) if is_missing else None

    def _step(self, target: _Target, name: str, *, lenient: bool) -> _Step:
        if isinstance(target.entry, dict):
            return self._member(target, name, target.name)
        is_object = target.entry == "~" and not target.owner
        instance = self.instances.get(f"{target.module}:{target.name}") if is_object else None
        if instance:
            kind, *attributes = instance
            return [_Target("~", target.module, name, kind)] if name in attributes else Absent("object", kind, name)
        if not target.entry.startswith(">"):
            return None  # an attribute of a value or of a function: not recorded
        module = target.entry[1:].rstrip(":")
        submodule = f"{module}.{name}"
        names = self.modules[module]
        if name in names:
            return Absent("name", module, name) if names[name] == MISSING else self._follow(names[name], module, name)
        if submodule in self.modules and (lenient or submodule not in self.dormant):
            return [_module(submodule)]
        for source in names.get("*", ()):
            if source not in self.modules:
                return None
            if name in self.modules[source]:
                return self._follow(self.modules[source][name], source, name)
        is_unknown = "__getattr__" in names or submodule in self.modules or name in OF_MODULES
        return None if is_unknown else Absent("name", module, name)

    def _follow(self, entry: Entry, module: str, name: str) -> list[_Target]:
        """Follow re-exports to the definition; return one target for each alternative."""
        if isinstance(entry, list):
            return [target for alternative in entry for target in self._follow(alternative, module, name)]
        if not (isinstance(entry, str) and entry.startswith(">")):
            return [_Target(entry, module, name)]
        source, _, original = entry[1:].partition(":")
        if not original:
            return [_Target(entry if source in self.modules else "~", source, name)]
        if entry not in self._followed:
            # A re-export without a definition, or of itself, is a defect of the recording, not of the release: unknown.
            self._followed[entry] = [_Target("~", source, original)]
            step = self._step(_module(source), original, lenient=True) if source in self.modules else None
            if isinstance(step, list):
                self._followed[entry] = step
        return self._followed[entry]

    def _parents(self, target: _Target) -> list[_Target]:
        bases = target.entry["bases"]
        return [parent for base in bases for parent in self._follow(base, target.module, "")]

    def _member(self, target: _Target, name: str, owner: str) -> _Step:
        """Look up a class member along its bases; None if a base is outside the package. `owner` is for errors."""
        members = target.entry["members"]
        if name in members:
            if isinstance(members[name], str) and members[name].startswith("d("):
                return [_Target(self._generated(target), target.module, name, target.name)]
            return [_Target(members[name], target.module, name, owner)]
        is_unknown = "__getattr__" in members or name in OF_CLASSES or name in target.entry.get("own", ())
        for parent in self._parents(target):
            step = self._member(parent, name, parent.name) if isinstance(parent.entry, dict) else None
            if isinstance(step, list):
                return step
            is_unknown = is_unknown or step is None
        if is_unknown:
            return self._autograd_apply(target) if name == "apply" else None
        return Absent("member", owner, name)

    def _of_object(self, target: _Target, name: str) -> _Found:
        """Look up an attribute that the class itself lacks in its objects; None where a method computes attributes."""
        for parent in self._lineage([target]):
            if name in parent.entry.get("own", ()):
                return ResolvedPath(name)
            if parent.entry["members"].get("__getattr__", "~") != "~":
                return None
        return Absent("object", target.name, name, sure=False)

    def _generated(self, target: _Target) -> Entry:
        """Return the constructor of a dataclass with the fields of its bases; "~" where a base is unknown."""
        items: list[str] = []
        for base in reversed(target.entry["bases"]):
            for parent in self._follow(base, target.module, ""):
                step = self._member(parent, "__init__", "") if isinstance(parent.entry, dict) else None
                constructor = step[0].entry if isinstance(step, list) else ""
                if not (isinstance(step, Absent) or constructor.startswith("(self")):
                    return "~"
                items += constructor[1:-1].split(",")
        return constructor_text([*items, *target.entry["members"]["__init__"][2:-1].split(",")])

    def _autograd_apply(self, target: _Target) -> list[_Target] | None:
        """Return `apply` of a torch.autograd.Function: positional-only, and torch passes a context first."""
        forward = target.entry["members"].get("forward", "")
        if not forward.startswith("s(") or "*" in forward:
            return None
        return [_Target(f"c({forward[2:-1]},/)", target.module, "forward", owner=target.name)]

    def _resolve(self, targets: list[_Target], via_instance: bool) -> ResolvedPath:
        definitions: list[_Definition] = []
        for target in targets:
            if target.entry == "=" and len(targets) > 1:
                continue  # `X = None` beside the real definition: a placeholder, never called
            definition = self._definition(target, via_instance)
            if not definition:
                return ResolvedPath(targets[0].title)
            definitions.append(definition)
        paths = {f"{target.module}:{target.title}" for target, _, _ in definitions}
        path = paths.pop() if len(paths) == 1 else ""
        return ResolvedPath(
            (definitions[-1][0] if definitions else targets[0]).title,
            tuple((parse_signature(text), bound) for _, text, bound in definitions),
            self.returned.get(path, 0),
            self.refused.get(path, ()),
        )

    def _definition(self, target: _Target, via_instance: bool) -> _Definition | None:
        """Return the definition of a target: that of its constructor for a class; None if unknown."""
        if isinstance(target.entry, dict):
            for constructor in ("__init__", "__new__"):
                step = self._member(target, constructor, target.name)
                if isinstance(step, list):
                    return self._definition(step[0], via_instance=True)
                if step is None:
                    return None  # a base outside the package may define the constructor
            return None
        mark, parameters, text = target.entry.partition("(")
        if not parameters:
            return None
        return target, f"({text}", mark == "c" if mark else bool(target.owner) and via_instance


def _module(name: str) -> _Target:
    return _Target(f">{name}:", name, name.rpartition(".")[2])
