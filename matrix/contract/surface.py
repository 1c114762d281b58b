"""What one Transformer Engine release offers: modules, functions, classes, values, with re-exports followed.

An entry of a module is recorded as
    "(a,b=1)"            a function and its signature
    ">module:name"       a name from elsewhere in the package (">module:" is a module)
    "="                  a value
    "~"                  something from outside the package: nothing is known of it
    {"bases": [...], "members": {...}}   a class; bases are written like entries
    [entry, ...]         defined differently in different branches
and a member of a class as "(self,a)", "c(cls,a)" (classmethod), "s(a)" (staticmethod), "=" or "~".
The key "*" of a module names the modules whose names it takes over with `import *` and that are outside the package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from matrix.contract.signature import CallSignature, parse_signature

Entry: TypeAlias = Any  # JSON, as above
DEEPEST = 12  # re-exports followed one after another; the longest chain in any release is 5


@dataclass(frozen=True)
class ResolvedPath:
    """Something that a path names.

    `callables` holds (signature, bound) for each way it may be defined; empty when nothing is known of how to call
    it. `bound`: Python supplies the first argument. `name` is how Python names it in an error.
    """

    name: str
    callables: tuple[tuple[CallSignature, bool], ...] = ()


@dataclass(frozen=True)
class Absent:
    """Something that a path names and that is not there.

    `what` is "module", "name" (of a module: an import fails) or "member" (of a class).
    """

    what: str
    owner: str
    name: str


class _Place(NamedTuple):
    """Where a path led: an entry, the module that defines it, the entry's own name, and the class it belongs to."""

    entry: Entry
    module: str
    name: str
    owner: str = ""


@dataclass
class Surface:
    """The API of one release. Lookups are remembered; the data is never changed.

    `dormant` are modules of the package that importing the package does not import: they can be imported, but are no
    attributes of their parents.
    """

    version: str
    modules: Mapping[str, Mapping[str, Entry]]
    dormant: frozenset[str] = frozenset()
    origin: Mapping[str, str] = field(default_factory=dict)  # tag, commit, wheel
    _known: dict[tuple[str, bool], ResolvedPath | Absent | None] = field(default_factory=dict, repr=False)

    def lookup(self, path: str, *, via_instance: bool = False) -> ResolvedPath | Absent | None:
        """Return what `path` ("module:attribute.attribute") names; None when it can't be told.

        `via_instance`: the last attribute is taken from an instance (or super()), so that Python binds it.
        """
        key = (path, via_instance)
        if key not in self._known:
            self._known[key] = self._lookup(path, via_instance)
        return self._known[key]

    def offers(self, path: str) -> bool | None:
        """Return whether `path` exists; None when it can't be told."""
        found = self.lookup(path)
        return None if found is None else isinstance(found, ResolvedPath)

    def takes(self, path: str, parameter: str) -> bool | None:
        """Return whether the callable at `path` has that parameter; None when it can't be told."""
        found = self.lookup(path)
        if not isinstance(found, ResolvedPath) or not found.callables:
            return None
        answers = {signature.takes(parameter) for signature, _ in found.callables}
        return answers.pop() if len(answers) == 1 else None

    def _lookup(self, path: str, via_instance: bool) -> ResolvedPath | Absent | None:
        module, _, attributes = path.partition(":")
        if module not in self.modules:
            return None if self._outside(module) else Absent("module", "", module)
        places = [_Place(f">{module}:", module, module.rpartition(".")[2])]
        names = attributes.split(".") if attributes else []
        for depth, name in enumerate(names):
            bound = via_instance and depth == len(names) - 1
            following: list[_Place] = []
            absent: Absent | None = None
            for place in places:
                # What an import statement names may be a module that nothing else imports.
                step = self._step(place, name, lenient=depth == 0)
                if isinstance(step, Absent):
                    absent = step
                elif step is None:
                    return None
                else:
                    following += step
            if not following:
                return absent
            places = following
            if depth == len(names) - 1:
                return self._found(places, bound)
        return ResolvedPath(module)

    def _outside(self, module: str) -> bool:
        return module.partition(".")[0] not in {name.partition(".")[0] for name in self.modules}

    def _step(self, place: _Place, name: str, *, lenient: bool) -> list[_Place] | Absent | None:
        entry = place.entry
        if isinstance(entry, dict):
            return self._member(place, name, place.name)
        if entry in ("=", "~") or entry[0] in "(sc":
            return None  # an attribute of a value or of a function: not recorded
        module = entry[1:].rstrip(":")
        submodule = f"{module}.{name}"
        names = self.modules[module]
        if name in names:
            return list(self._follow(names[name], module, name))
        if submodule in self.modules and (lenient or submodule not in self.dormant):
            return [_Place(f">{submodule}:", submodule, name)]
        for source in names.get("*", ()):
            if source not in self.modules:
                return None
            if name in self.modules[source]:
                return list(self._follow(self.modules[source][name], source, name))
        return None if "__getattr__" in names or submodule in self.modules else Absent("name", module, name)

    def _follow(self, entry: Entry, module: str, name: str, depth: int = 0) -> Iterator[_Place]:
        """Follow re-exports to where the thing is defined; one place for each way it may be defined."""
        if isinstance(entry, list):
            for alternative in entry:
                yield from self._follow(alternative, module, name, depth)
        elif not (isinstance(entry, str) and entry.startswith(">")):
            yield _Place(entry, module, name)
        else:
            source, _, original = entry[1:].partition(":")
            if not original:
                yield _Place(entry if source in self.modules else "~", source, name)
                return
            step = None
            if depth < DEEPEST and source in self.modules:
                known = self.modules[source].get(original)
                if known is not None:
                    yield from self._follow(known, source, original, depth + 1)
                    return
                step = self._step(_Place(f">{source}:", source, source), original, lenient=True)
            # A re-export of something that can't be found is a fault of the recording, not of the release: unknown.
            yield from step if isinstance(step, list) else [_Place("~", source, original)]

    def _member(self, place: _Place, name: str, spoken: str) -> list[_Place] | Absent | None:
        """Look a class member up along its bases; None when a base is outside the package."""
        members = place.entry["members"]
        if name in members:
            return [_Place(members[name], place.module, name, owner=spoken)]
        unknown = "__getattr__" in members
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
        return Absent("member", spoken, name)

    def _autograd_apply(self, place: _Place) -> list[_Place] | None:
        """A torch.autograd.Function is called through `apply`, by position; torch puts a context before the rest."""
        forward = place.entry["members"].get("forward", "")
        if not (isinstance(forward, str) and forward.startswith("s(")) or "*" in forward:
            return None
        return [_Place(f"c({forward[2:-1]},/)", place.module, "forward", owner=place.name)]

    def _found(self, places: list[_Place], via_instance: bool) -> ResolvedPath:
        callables: list[tuple[CallSignature, bool]] = []
        for place in places:
            if place.entry == "=" and len(places) > 1:
                continue  # `X = None` beside the real definition: a placeholder, which nobody calls
            definitions = self._definitions(place, via_instance)
            if not definitions:
                return ResolvedPath(_spoken(places[0]))
            callables += [(parse_signature(text), bound) for _, text, bound in definitions]
            spoken = definitions[0][0]
        return ResolvedPath(spoken if callables else _spoken(places[0]), tuple(callables))

    def _definitions(self, place: _Place, via_instance: bool) -> list[tuple[str, str, bool]]:
        """Return (name in errors, signature, bound) for each way the place may be called; empty when unknown."""
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
                    return []  # a base outside the package may bring its own constructor
            return []
        if entry.startswith("("):
            return [(_spoken(place), entry, bool(place.owner) and via_instance)]
        if entry.startswith(("c(", "s(")):
            return [(_spoken(place), entry[1:], entry.startswith("c"))]
        return []


def _spoken(place: _Place) -> str:
    return f"{place.owner}.{place.name}" if place.owner else place.name
