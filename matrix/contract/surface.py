"""The API of one release of a provider: modules, functions, classes and values; lookups follow re-exports.

An entry of a module is recorded as
    "(a,b=1)"            a function and its signature
    ">module:name"       a name of another module of the package (">module:" is a module)
    "="                  a value
    "~"                  something from outside the package, or unknown
    {"bases": [...], "members": {...}}   a class; bases are written like entries; "own": attributes of its instances
    [entry, ...]         alternatives from different branches
and a member of a class as "(self,a)", "c(cls,a)" (classmethod), "s(a)" (staticmethod), "=" or "~". "d(self,a)" is a
dataclass's constructor without the fields of its bases in other modules.
The key "*" of a module lists the modules outside the package that it imports with `import *`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from matrix.contract.provider import provider_of
from matrix.contract.signature import BindingError, CallSignature, parse_signature

Entry: TypeAlias = Any  # JSON, as above
Instance: TypeAlias = "list[str]"  # [class, attribute, ...]
Refusal: TypeAlias = "list[str]"  # [exception, parameter without which it is raised; "" is always]
ANONYMOUS = "forward"  # `layer(hidden_states=...)` calls an object, whose class has this method
OF_MODULES = frozenset(dir(ModuleType("any"))) | {"__file__", "__path__"}  # what every module has
OF_CLASSES = frozenset(dir(type)) - {"__init__", "__new__", "__call__"}


class OwnCall(NamedTuple):
    """A call that the provider itself makes. `module` is the place of its module in their sorted names."""

    module: int
    positional: int
    keywords: tuple[str, ...]
    starred: bool
    open_keywords: bool

    def __str__(self) -> str:
        """Return the recorded form: "MODULE POSITIONALS KEYWORD ... * **"."""
        more = ["*"] * self.starred + ["**"] * self.open_keywords
        return " ".join([str(self.module), str(self.positional), *self.keywords, *more])

    def problems(self, signature: CallSignature, *, bound: bool) -> list[BindingError]:
        """Return why it does not bind to a signature."""
        return signature.problems(
            self.positional, self.keywords, bound=bound, starred=self.starred, open_keywords=self.open_keywords
        )

    def may_be_of(self, original: CallSignature, *, bound: bool) -> bool:
        """Return whether it binds to named parameters of a callable, not to *args or **kwargs."""
        named = self.positional + bound <= len(original.slots) and all(map(original.takes, self.keywords))
        return named and not self.problems(original, bound=bound)


@lru_cache(maxsize=65536)
def parse_call(text: str) -> OwnCall:
    """Read the recorded form of a call."""
    module, positional, *more = text.split()
    keywords = tuple(one for one in more if one[0] != "*")
    return OwnCall(int(module), int(positional), keywords, "*" in more, "**" in more)


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
    refuses: Sequence[Refusal] = ()


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


class _Place(NamedTuple):
    """The end of a path: an entry, the module that defines it, the entry's own name, and the class it belongs to."""

    entry: Entry
    module: str
    name: str
    owner: str = ""


_Definition: TypeAlias = tuple[_Place, str, bool]  # place, signature, bound


@dataclass
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
    _ends: dict[str, list[_Place] | Absent | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _followed: dict[str, list[_Place]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _known: dict[tuple[str, bool], ResolvedPath | Absent | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _calls: dict[str, list[OwnCall]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def lookup(self, path: str, *, via_instance: bool = False) -> ResolvedPath | Absent | None:
        """Look up `path` ("module:attribute.attribute"); None if the surface does not record it.

        `via_instance`: the last attribute is read from an instance (or super()), so Python binds it.
        """
        key = (path, via_instance)
        if key not in self._known:
            self._known[key] = self._lookup(path, via_instance)
        return self._known[key]

    def offers(self, path: str) -> bool | None:
        """Return whether `path` exists; None if the surface does not record it."""
        found = self.lookup(path)
        return None if found is None else isinstance(found, ResolvedPath)

    def takes(self, path: str, parameter: str) -> bool | None:
        """Return whether the callable at `path` has that parameter; None if unknown, or if its definitions differ."""
        found = self.lookup(path)
        if not isinstance(found, ResolvedPath) or not found.callables:
            return None
        results = {signature.takes(parameter) for signature, _ in found.callables}
        return results.pop() if len(results) == 1 else None

    def calls_of(self, path: str) -> list[OwnCall]:
        """Return the provider's own calls that may be to the method or function at `path`."""
        if path not in self._calls:
            name = path.rpartition(":")[2].rpartition(".")[2]
            # Of a class, another package than its own constructs only that of a spec.
            more = " submodules" if name == "__init__" else ""
            calls = [parse_call(text + more) for text in self.called.get(name, ())]
            found = self.lookup(path, via_instance=True) if calls else None
            callables = found.callables if isinstance(found, ResolvedPath) else ()
            self._calls[path] = [
                call for call in calls if any(call.may_be_of(original, bound=bound) for original, bound in callables)
            ]
        return self._calls[path]

    def caller(self, call: OwnCall) -> str:
        """Return the name of the module that makes a call."""
        return sorted(self.modules)[call.module]

    def _lookup(self, path: str, via_instance: bool) -> ResolvedPath | Absent | None:
        module, _, attributes = path.partition(":")
        places = self._reached(path)
        if isinstance(places, list):
            return self._found(places, via_instance) if attributes else ResolvedPath(module)
        owner, _, name = path.rpartition("." if "." in attributes else ":")
        owners = self._reached(owner if "." in attributes else f"{module}:") if via_instance and places is None else ()
        for place in owners if isinstance(owners, list) else ():
            if isinstance(place.entry, dict) and self._step(place, name, lenient=False) is None:
                return self._of_object(place, name)
        return places

    def _reached(self, path: str) -> list[_Place] | Absent | None:
        """Return the possible ends of a path; None if one is not recorded."""
        if path not in self._ends:
            module, _, attributes = path.partition(":")
            owner, _, name = attributes.rpartition(".")
            if name:
                owners = self._reached(f"{module}:{owner}")
                # An import statement also loads a module that nothing else imports.
                self._ends[path] = self._steps(owners, name, lenient=not owner) if isinstance(owners, list) else owners
            elif module in self.modules:
                self._ends[path] = [_Place(f">{module}:", module, module.rpartition(".")[2])]
            else:
                missing = not self._outside(module) and provider_of(self.package).records(module)
                self._ends[path] = Absent("module", "", module) if missing else None
        return self._ends[path]

    def _steps(self, places: list[_Place], name: str, *, lenient: bool) -> list[_Place] | Absent | None:
        found: list[_Place] = []
        absent: Absent | None = None
        for place in places:
            step = self._step(place, name, lenient=lenient)
            if step is None:
                return None
            if isinstance(step, Absent):
                absent = step
            else:
                found += step
        return found or absent

    def _outside(self, module: str) -> bool:
        return module.partition(".")[0] not in {name.partition(".")[0] for name in self.modules}

    def _step(self, place: _Place, name: str, *, lenient: bool) -> list[_Place] | Absent | None:
        entry = place.entry
        if isinstance(entry, dict):
            return self._member(place, name, place.name)
        known = self.instances.get(f"{place.module}:{place.name}") if entry == "~" and not place.owner else None
        if known is not None:
            return (
                [_Place("~", place.module, name, known[0])] if name in known[1:] else Absent("object", known[0], name)
            )
        if entry in ("=", "~") or entry[0] in "(scd":
            return None  # an attribute of a value or of a function: not recorded
        module = entry[1:].rstrip(":")
        submodule = f"{module}.{name}"
        names = self.modules[module]
        if name in names:
            return self._follow(names[name], module, name)
        if submodule in self.modules and (lenient or submodule not in self.dormant):
            return [_Place(f">{submodule}:", submodule, name)]
        for source in names.get("*", ()):
            if source not in self.modules:
                return None
            if name in self.modules[source]:
                return self._follow(self.modules[source][name], source, name)
        unknown = "__getattr__" in names or submodule in self.modules or name in OF_MODULES
        return None if unknown else Absent("name", module, name)

    def _follow(self, entry: Entry, module: str, name: str) -> list[_Place]:
        """Follow re-exports to the definition; return one place for each alternative."""
        if isinstance(entry, list):
            return [place for alternative in entry for place in self._follow(alternative, module, name)]
        if not (isinstance(entry, str) and entry.startswith(">")):
            return [_Place(entry, module, name)]
        source, _, original = entry[1:].partition(":")
        if not original:
            return [_Place(entry if source in self.modules else "~", source, name)]
        if entry not in self._followed:
            # A re-export without a definition, or of itself, is a defect of the recording, not of the release: unknown.
            unknown = self._followed[entry] = [_Place("~", source, original)]
            known = source in self.modules
            step = self._step(_Place(f">{source}:", source, source), original, lenient=True) if known else None
            self._followed[entry] = step if isinstance(step, list) else unknown
        return self._followed[entry]

    def _member(self, place: _Place, name: str, owner: str) -> list[_Place] | Absent | None:
        """Look up a class member along its bases; None if a base is outside the package. `owner` is for errors."""
        members = place.entry["members"]
        if name in members:
            if isinstance(members[name], str) and members[name].startswith("d("):
                return [_Place(self._generated(place), place.module, name, owner=place.name)]
            return [_Place(members[name], place.module, name, owner=owner)]
        unknown = "__getattr__" in members or name in OF_CLASSES or name in place.entry.get("own", ())
        for base in place.entry["bases"]:
            for parent in self._follow(base, place.module, ""):
                if not isinstance(parent.entry, dict):
                    unknown = True
                    continue
                found = self._member(parent, name, parent.name)
                if isinstance(found, list):
                    return found
                unknown = unknown or found is None
        if unknown:
            return self._autograd_apply(place) if name == "apply" else None
        return Absent("member", owner, name)

    def _of_object(self, place: _Place, name: str) -> ResolvedPath | Absent | None:
        """Look up an attribute that the class itself lacks in its objects; None where a method computes attributes."""
        classes = [place]
        for each in classes:
            if isinstance(each.entry, dict):
                if name in each.entry.get("own", ()):
                    return ResolvedPath(name)
                if each.entry["members"].get("__getattr__", "~") != "~":
                    return None
                classes += [parent for base in each.entry["bases"] for parent in self._follow(base, each.module, "")]
        return Absent("object", place.name, name, sure=False)

    def _generated(self, place: _Place) -> Entry:
        """Return the constructor of a dataclass with the fields of its bases; "~" where a base is unknown."""
        slots: dict[str, str] = {}
        for base in reversed(place.entry["bases"]):
            for parent in self._follow(base, place.module, ""):
                step = self._member(parent, "__init__", "") if isinstance(parent.entry, dict) else None
                if isinstance(step, Absent):
                    continue
                if step is None or not isinstance(step[0].entry, str) or not step[0].entry.startswith("(self"):
                    return "~"
                slots.update((item.partition("=")[0], item) for item in step[0].entry[1:-1].split(","))
        own = place.entry["members"]["__init__"][2:-1]
        slots.update((item.partition("=")[0], item) for item in own.split(","))
        return f"({','.join(['self', *(item for name, item in slots.items() if name != 'self')])})"

    def _autograd_apply(self, place: _Place) -> list[_Place] | None:
        """Return `apply` of a torch.autograd.Function: positional-only, and torch passes a context first."""
        forward = place.entry["members"].get("forward", "")
        if not (isinstance(forward, str) and forward.startswith("s(")) or "*" in forward:
            return None
        return [_Place(f"c({forward[2:-1]},/)", place.module, "forward", owner=place.name)]

    def _found(self, places: list[_Place], via_instance: bool) -> ResolvedPath:
        found: list[_Definition] = []
        for place in places:
            if place.entry == "=" and len(places) > 1:
                continue  # `X = None` beside the real definition: a placeholder, never called
            definitions = self._definitions(place, via_instance)
            if not definitions:
                return ResolvedPath(_error_name(places[0]))
            found += definitions
        paths = {f"{place.module}:{_error_name(place)}" for place, _, _ in found}
        only = paths.pop() if len(paths) == 1 else ""
        return ResolvedPath(
            _error_name(found[-1][0] if found else places[0]),
            tuple((parse_signature(text), bound) for _, text, bound in found),
            self.returned.get(only, 0),
            self.refused.get(only, ()),
        )

    def _definitions(self, place: _Place, via_instance: bool) -> list[_Definition]:
        """Return each possible definition of the place; empty if unknown."""
        entry = place.entry
        if isinstance(entry, list):
            found = [self._definitions(_Place(e, place.module, place.name, place.owner), via_instance) for e in entry]
            return [definition for each in found for definition in each] if all(found) else []
        if isinstance(entry, dict):
            for constructor in ("__init__", "__new__"):
                step = self._member(place, constructor, place.name)
                if isinstance(step, list):
                    return self._definitions(step[0], via_instance=True)
                if step is None:
                    return []  # a base outside the package may define the constructor
            return []
        if entry.startswith("("):
            return [(place, entry, bool(place.owner) and via_instance)]
        if entry.startswith(("c(", "s(")):
            return [(place, entry[1:], entry.startswith("c"))]
        return []


def _error_name(place: _Place) -> str:
    return f"{place.owner}.{place.name}" if place.owner else place.name
