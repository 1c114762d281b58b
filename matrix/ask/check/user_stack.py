"""The stack that a user checks: what files and words state, each with its place, and what they limit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from matrix.ask.check.files.declared import NEWEST, REMOVED, Declared, ImageUse, Statement, Unread, UnreadKind, not_read
from matrix.ground.catalog.model import Base, Catalog, Container
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    DRIVER,
    GPUS,
    MCORE,
    PYTHON,
    SM,
    TE,
    TORCH,
    UNKNOWN,
    WRITER,
    Bound,
    Component,
    Place,
    Stack,
    Value,
    component_title,
    components,
    in_order,
    known_component,
    short,
)
from matrix.ground.catalog.versions import Range, inside, is_version, parse
from matrix.ground.errors import MatrixError, closest

COMMAND_LINE: Final = Place("command line")  # of a version that the user types
RELEASE_TAG: Final = re.compile(r"^(?:core_[vr]|v)(?=\d)")
RECORDED: Final = (TORCH, MCORE, TE, DRIVER, SM, *WRITER)  # components whose versions the catalog lists
WORD_END: Final = re.compile(r"\s+|,(?=\s*[A-Za-z])")  # the comma of a range is followed by an operator
OPERATOR: Final = re.compile(r"(?<!\s)\s*(===?|[<>~!]=|[<>=])\s*")
BOUND: Final = re.compile(rf"([A-Za-z][\w.-]*?){OPERATOR.pattern}(\S+)")
FORM: Final = (
    '"mcore=0.9.0 te>=2.8,<2.12 torch=newest gpu=H100 driver=535"; base=ngc-24.07 stands for the torch and TE of an '
    "image"
)
# An image of NVIDIA in any notation: nvcr.io/nvidia/pytorch:24.07-py3, nvcr.io#nvidia/..., nvidia+pytorch+24.07.sqsh
# Of pytorch:25.04-py3-mcore0.13 and nemo:25.11.nemotron_3_nano no more is known than that they are others.
NVIDIA_IMAGE: Final = re.compile(
    r"(?:^|[^a-z])(pytorch|nemo)[:+_@-](?:v)?(\d\d\.\d\d)(?:\.\d\d)?(?:[-.](?:py3|framework))*(?:\.(?:sqsh|sif|simg|img))?(?:@|$)",
    re.IGNORECASE,
)
TORCH_IMAGE: Final = re.compile(r"(?:^|/)pytorch/pytorch:(\d+\.\d+\.\d+)")
# Images of an operating system, Python or CUDA alone: nothing of a stack is in them but what a file adds.
PLAIN_IMAGE: Final = re.compile(
    r"(?:^|/)(?:ubuntu|debian|alpine|busybox|python|rockylinux|almalinux|fedora|centos|nvidia/cuda|astral-sh/uv"
    r"|conda-forge/miniforge3?|continuumio/miniconda3?|mambaorg/micromamba)(?:[:@]|$)"
)
FAMILY: Final = {"pytorch": "ngc", "nemo": "nemo"}


@dataclass(frozen=True)
class UserStack:
    """The stack that a user checks.

    `places` are where the components are stated, `limits` the specifier sets of those stated without a version, ""
    for any. `unread` is what the input names and was not read or is not known: `unknown_parts` in answer.py adds what
    the rules find. `notes` are other remarks.
    """

    stack: Stack
    places: Mapping[str, Place] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()

    def place(self, component: str) -> Place | None:
        """Return where a component is stated, None where it is not."""
        return self.places.get(component)

    @property
    def named(self) -> list[tuple[str, str, str]]:
        """Return (component, version or "none", place) of everything that is stated, in the components' order."""
        stated = in_order(name for name in self.places if self.stack[name] is not UNKNOWN)
        return [(name, str(self.stack[name]), str(self.places[name])) for name in stated]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: versions and "none" by component, and what else is known of them."""
        return {
            "components": {name: value for name, value, _ in self.named},
            "limits": dict(self.limits),
            "sources": {name: place for name, _, place in self.named},
            "notes": list(self.notes),
        }


def parse_text(catalog: Catalog, text: str) -> list[Statement]:
    """Return the statements of a text such as "mcore=0.8.0 torch=2.4.1". Raises MatrixError with a suggestion."""
    statements: dict[str, Statement] = {}
    for word in filter(None, WORD_END.split(OPERATOR.sub(r"\1", text.strip(", ")))):
        match = BOUND.fullmatch(word)
        if match is None and (image := image_of(catalog, word)):
            match = BOUND.fullmatch(f"{BASE}={image.id}")
        if match is None:
            fix = closest(word, catalog.bases, otherwise='name components, such as "mcore=0.9.0 torch=2.4.1"')
            fix = f"megatrix show {word}" if re.search(r"(#|/issues/|/pull/)\d+$", word) else fix
            fix = "write it into a file: COMMAND > requirements.txt" if word == "-" else fix
            raise MatrixError("not a stack", got=word, expected=FORM, fix=fix)
        statement = _statement(catalog, word, *match.groups())
        if statement.name in statements:
            raise MatrixError("a component is named twice", got=word, expected=f"one {short(statement.name)}")
        statements[statement.name] = statement
    if not statements:
        raise MatrixError("no stack", got=repr(text), expected=FORM)
    return list(statements.values())


def _statement(catalog: Catalog, word: str, name: str, operator: str, text: str) -> Statement:
    """Return what a word states: a version, `none`, `newest`, a model of GPU, an image, or a range."""
    if name.lower() == "gpu":
        return Statement(SM, capability_of(catalog, text), COMMAND_LINE)
    component, version = known_component(name, catalog.packages), RELEASE_TAG.sub("", text)  # a tag of git, too
    example = f"{short(component)}={getattr(components().get(component), 'example', '1.2.3')}"
    if operator not in ("=", "=="):
        try:
            limits = str(SpecifierSet(f"{operator}{version}"))
        except InvalidSpecifier:
            raise MatrixError("not a range", got=word, expected=f"{short(component)}>=1.2,<1.4") from None
        return Statement(component, UNKNOWN, COMMAND_LINE, limits)
    if component == BASE:
        image = image_of(catalog, version)
        return Statement(BASE, image.id if image else catalog.base(version).id, COMMAND_LINE)
    if version == "newest" and component in RECORDED:
        version = recorded(catalog, component)[-1]
    if version != str(ABSENT) and not is_version(version):
        raise MatrixError("not a version", got=word, expected=f"a PEP 440 version, such as {example}")
    return Statement(component, ABSENT if version == str(ABSENT) else version, COMMAND_LINE)


def capability_of(catalog: Catalog, word: str) -> str:
    """Return the compute capability of a model of GPU: of H100, NVIDIA-H100-80GB, RTX 4090, l40s."""
    models = {model: gpu.sm for gpu in catalog.gpus for model in gpu.name.split(", ")}
    tokens = [re.sub(r"^(geforce|rtx)+", "", token) for token in re.split(r"[\s_-]+", word.lower())]
    for model, sm in models.items():
        *series, number = model.lower().split(" ")
        for token in tokens:
            if token == number.removeprefix("rtx") or (
                "rtx" in series and re.fullmatch(rf"{number}\d0(ti|super)?", token)
            ):
                return sm
    raise MatrixError("no such GPU", got=word or "nothing", expected="a model", fix=closest(word.upper(), models))


def image_of(catalog: Catalog, reference: str) -> Container | None:
    """Return the container of the catalog that an image reference means, in the notation of any tool."""
    for container in catalog.containers:
        if reference in (container.tag, container.id):
            return container
    match = NVIDIA_IMAGE.search(reference)
    base = catalog.bases.get(f"{FAMILY[match[1].lower()]}-{match[2]}") if match else None
    return base if isinstance(base, Container) else None


def image_contents(catalog: Catalog, image: ImageUse) -> Declared:
    """Return what an image states; one that the catalog does not know is not read."""
    if container := image_of(catalog, image.reference):
        return Declared(pins=(Statement(BASE, container.id, image.place, perhaps=image.perhaps),))
    if torch := TORCH_IMAGE.search(image.reference):
        return Declared(pins=(Statement(TORCH, torch[1], image.place, perhaps=image.perhaps),))
    if PLAIN_IMAGE.search(image.reference):
        return Declared()
    text = f"the catalog does not know the image {image.reference}, so its packages are not known"
    return not_read(UnreadKind.IMAGE, text, image.place)


def unknown_contents(image: str, missing: Iterable[str]) -> str:
    """Return that the catalog does not know these components of an image."""
    return f"the catalog does not know the {' and the '.join(map(component_title, missing))} of {image}"


def build(
    catalog: Catalog,
    statements: Iterable[Statement],
    *,
    closed: bool = False,
    label: str = "",
    notes: Sequence[str] = (),
    unread: tuple[Unread, ...] = (),
) -> UserStack:
    """Return the stack of these statements; a later one replaces an earlier one, and a note names the two.

    `closed`: the statements name every package of the environment, so that another one is absent. `label` is
    NVIDIA_PYTORCH_VERSION, for a torch of an NGC image.
    """
    every = list(statements)
    stated, remarks = _latest(every)
    if isinstance(image := stated[BASE].value if BASE in stated else UNKNOWN, str):
        stated |= _torn(catalog.bases[image], stated)
    values: dict[str, Value] = {name: each.value for name, each in stated.items() if each.value is not UNKNOWN}
    places = {name: stated[name].place for name in values}
    base = catalog.bases[str(values.pop(BASE))] if BASE in values else None
    brought = _from_image(base, stated) if base else {}
    places = {**dict.fromkeys(brought, Place(f"in {base.id if base else ''}")), **places}
    values = {**brought, **values}
    torch = values.get(TORCH)
    missing = sorted({TORCH, TE}.difference(values, stated)) if isinstance(base, Container) else []
    contents = (Unread(UnreadKind.IMAGE, unknown_contents(base.id, missing), places[BASE]),) if base and missing else ()
    if base and torch != (base.contents().version(TORCH) or torch):
        remarks.append(f"torch {torch or stated[TORCH].limits} ({stated[TORCH].place}) replaces that of {base.id}")
        base = None
    container = base or (catalog.container_of(torch, label) if isinstance(torch, str) else None)
    if container or torch:
        values[BASE] = container.id if container else ABSENT
    places = {BASE: Place("by its torch"), **places} if container else {**places}
    closed = closed and not base
    unstated = {name: each for name, each in stated.items() if name not in values}
    places |= {name: each.place for name, each in unstated.items()}
    if closed:
        values = {**_left_open(unstated), **values}
        places |= {name: Place("absent") for name in (TORCH, MCORE, TE) if name not in values}
    limits = {name: each.limits for name, each in unstated.items()}
    unread = (*unread, *contents, *_unknown_parts(catalog, stated, unstated), *_unreleased(every, values))
    if not container:
        places.pop(BASE, None)
    return UserStack(Stack(values, ABSENT if closed else UNKNOWN), places, limits, (*notes, *remarks), unread)


def _torn(base: Base, stated: Mapping[str, Statement]) -> dict[str, Statement]:
    """Return the statements that may replace another version of an image."""
    contents = base.contents()
    perhaps = {
        name: statement
        for name, statement in stated.items()
        if statement.perhaps and statement.version and name != BASE
    }
    return {
        name: statement.either(contents[name])
        for name, statement in perhaps.items()
        if contents[name] != statement.version
    }


def _keeps_pin(statement: Statement | None, version: str) -> bool:
    """Return whether an installer keeps the version of an image: it fits the limits that are stated besides."""
    try:
        limits = SpecifierSet(statement.limits if statement else "")
    except InvalidSpecifier:  # of a statement that may replace it, too
        return not (statement and statement.perhaps)
    return any(limits.contains(text, prereleases=True) for text in (version, parse(version).base_version))


def _unreleased(statements: Iterable[Statement], values: Mapping[str, Value]) -> Iterator[Unread]:
    """Yield the revisions of recorded components that one part of a file installs, another part a release."""
    for statement in statements:
        if statement.limits.startswith("===") and statement.name in RECORDED and statement.name in values:
            text = f"{component_title(statement.name)} of {statement.limits[3:]} is no release"
            yield Unread(UnreadKind.VERSION, text, statement.place)


def _left_open(unstated: Iterable[str]) -> dict[str, Value]:
    """Return what a list of all packages leaves unknown: those without a version, and what is no distribution."""
    outside = (name for name, component in components().items() if not component.distribution)
    return dict.fromkeys((*outside, *unstated), UNKNOWN)


def _unknown_parts(catalog: Catalog, stated: Mapping[str, Statement], unstated: Collection[str]) -> Iterator[Unread]:
    """Yield what is stated and not known: versions that the catalog lacks, components that nothing in it judges."""
    for name, statement in stated.items():
        version, title = statement.version, component_title(name)
        if name in RECORDED:
            if version and (why := _unrecorded(catalog, name, version)):
                fix = _beside(version, recorded(catalog, name))
                yield Unread(UnreadKind.VERSION, f"{title} {version} {why}", statement.place, fix)
            elif name in unstated:
                limits = f" ({statement.limits.replace('===', '')})" * bool(statement.limits)
                text = {
                    REMOVED: f"{title} is removed, and whether another one is installed is not known",
                    NEWEST: f"{title} is upgraded, and which version was the newest is not known",
                }.get(statement.limits, f"no exact version of {title} is stated{limits}")
                yield Unread(UnreadKind.VERSION, text, statement.place, f"name it, such as {short(name)}=VERSION")
        elif statement.value is not ABSENT and not _judged(catalog, statement, stated):
            text = f"no rule or fact of the catalog judges {title} {version}".rstrip()
            yield Unread(UnreadKind.PACKAGE, text, statement.place, f"look for known problems of {title} elsewhere")


def _judged(catalog: Catalog, statement: Statement, stated: Mapping[str, Statement]) -> bool:
    """Return whether the catalog can speak of a component: by a rule, a base that has this version, or its release.

    A package whose version follows from another one is known with that one, but not on the command line, where no
    installer has compared the two.
    """
    name = statement.name
    row = components().get(name, Component(name))
    if name in catalog.judged or name in (BASE, PYTHON, GPUS) or (row.framework and not statement.version):
        return True
    if row.follows in stated and statement.place != COMMAND_LINE:
        return True
    if row.framework:
        from matrix.ground.catalog.distributions import read_distributions  # not needed for most answers: 0.1 s

        return read_distributions().of(name, statement.version) is not None
    release = parse(statement.version).release if statement.version else ()
    contained = (base.contents().version(name) for base in catalog.bases.values())
    return bool(release) and any(parse(text).release[: len(release)] == release for text in contained if text)


def _latest(statements: Iterable[Statement]) -> tuple[dict[str, Statement], list[str]]:
    """Return the last statement with a value of each component, else its last one, and notes of what it replaces."""
    stated: dict[str, Statement] = {}
    remarks = []
    for each in statements:
        before = stated.get(each.name, each)
        stated[each.name] = _after(before, each)
        if stated[each.name] is each and UNKNOWN not in (before.value, each.value) and before.value != each.value:
            versions = f"{before.value} ({before.place}), then {each.value} ({each.place})"
            remarks.append(f"{component_title(each.name)}: {versions}; the later one counts")
    return stated, remarks


def _after(earlier: Statement, later: Statement) -> Statement:
    """Return what is stated of a component after two statements: the later one, unless the earlier one may stay."""
    value = earlier.limits if " or " in earlier.limits else earlier.value
    if later.perhaps and UNKNOWN not in (later.value, value) and later.value != value:
        return later.either(value)
    if later.value is UNKNOWN and earlier.version and not later.limits.endswith((REMOVED, NEWEST)):
        if later.limits.startswith("===") or _keeps_pin(later, earlier.version):
            return earlier
        return replace(later, limits=f"{earlier.version} or {later.limits}") if later.perhaps else later
    return later


def _from_image(base: Base, stated: Mapping[str, Statement]) -> dict[str, str]:
    """Return the versions of a base that what is stated leaves in place, as far as they are known."""
    contents = base.contents().versions.items()
    return {name: version for name, version in contents if name != BASE and _keeps_pin(stated.get(name), version)}


def decide(catalog: Catalog, user: UserStack, component: str, bound: Bound) -> bool | None:
    """Return whether an unknown component is in a bound, as far as the user's limits say; None where they do not."""
    if component == BASE:
        torches = [base.contents().version(TORCH) for base in catalog.bases.values() if base.id in bound]
        return None if any(allows(user, TORCH, torch or "") for torch in torches) else False
    text = bound.text if isinstance(bound, Range) else ""
    versions = possible(catalog, user, component, text)
    allowed = inside(text, tuple(versions)) if text else [version for version in versions if version in bound]
    if versions and not allowed:
        return False
    return True if versions and len(allowed) == len(versions) and user.limits.get(component) else None


def possible(catalog: Catalog, user: UserStack, component: str, bound: str = "") -> list[str]:
    """Return the recorded versions of an unknown component that the user's limits allow, oldest first.

    Of a package no versions are recorded: those of its limits and of `bound`, and the next ones, stand for all others.
    """
    limits = user.limits.get(component)
    recorded_versions = recorded(catalog, component)
    if recorded_versions or not limits:
        return [version for version in recorded_versions if allows(user, component, version)]
    texts = filter(is_version, re.findall(r"\d(?:[\w.!]{0,99}\w)?", f"{limits},{bound}"))
    samples = {sample for text in texts for sample in (text, f"{parse(text).base_version}.1")}
    return [version for version in sorted({"0", *samples}, key=parse) if allows(user, component, version)]


def allows(user: UserStack, component: str, version: str) -> bool:
    """Return whether the limits of a component allow a version; limits that are no specifier set allow every one."""
    limits = user.limits.get(component)
    try:
        return not limits or not version or SpecifierSet(limits).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True


def recorded(catalog: Catalog, component: str) -> list[str]:
    """Return the versions of a component that the catalog records, oldest first; releases only, without builds."""
    if component == DRIVER:
        return [driver.branch for driver in catalog.drivers]
    if component == SM:
        return sorted({gpu.sm for gpu in catalog.gpus}, key=parse)
    return [release.version for release in catalog.releases(WRITER.get(component, component))]


def unrecorded(catalog: Catalog, stack: Stack) -> dict[str, str]:
    """Return, by component, why the stack's version is none that the catalog knows; such a version may not exist."""
    reasons = {}
    for component in RECORDED:
        version = stack.version(component)
        if version and (why := _unrecorded(catalog, component, version)):
            reasons[component] = f"{component_title(component)} {version} {why}"
    return reasons


def _beside(version: str, releases: Sequence[str]) -> str:
    """Return the releases that may be meant: one of the same digits, else the last before and the first after."""
    same = [release for release in releases if release.replace(".", "") == version.replace(".", "")]
    place = sum(parse(release) < parse(version) for release in releases)
    return f"did you mean {' or '.join(same or releases[max(0, place - 1) : place + 1])}?"


def _unrecorded(catalog: Catalog, component: str, version: str) -> str:
    releases = recorded(catalog, component)
    if not releases:
        return ""
    given = parse(version)
    if component == DRIVER:
        given = parse(str(given.release[0]))
    public = [parse(release) for release in releases]
    if parse(given.public) in public or version in catalog.stated(component):
        return ""
    if given > max(public):
        return f"is newer than every release that this catalog knows: {releases[-1]} is the newest"
    if given.is_prerelease and parse(given.base_version) in public:
        return ""
    lower = [release for release in releases if parse(release) < given]
    upper = next(release for release in releases if parse(release) > given)
    between = f"{lower[-1]}, then {upper}" if lower else f"{upper} is the first"
    return f"is no release that this catalog knows: {between}"
