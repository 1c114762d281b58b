"""Match what a case requires with what its base and the machine offer, the driver included. Pure functions.

A property that is not known from here makes no case unavailable: the process that runs the case sees its base and its
GPUs, and matches again. Drivers: facts/drivers.toml and containers.toml; without a fact the answer is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from matrix.ground.cases.cells import CLONE
from matrix.ground.catalog.failure import GIB, Case, CaseNeed, Level
from matrix.ground.catalog.machine import Cuda, Machine, PythonEnvironment, Toolkit
from matrix.ground.catalog.model import HOST, Catalog, Container, Driver, Image, Wheels
from matrix.ground.catalog.stack import ABSENT, CUDA, DRIVER, SM, TE, TOOLKIT, Stack
from matrix.ground.catalog.versions import NONE, minor, parse
from matrix.ground.errors import counted
from matrix.ground.verdicts.planned import Kind, Lack, Planned

if TYPE_CHECKING:
    from matrix.ground.catalog.distributions import SharedNccl


class Fit(str, Enum):
    """How an image's CUDA runs on a kernel driver."""

    NATIVE = "native"
    COMPAT = "compat"  # with the user-mode driver of the image
    TOO_OLD = "too old"
    UNKNOWN = "unknown"  # the catalog has no source


@dataclass(frozen=True)
class Fitting:
    """The result, with its reason."""

    fit: Fit
    reason: str


def fit_of(catalog: Catalog, stack: Stack) -> Fitting | None:
    """Return how the CUDA of a stack, of its image or of its wheels, runs on its driver; None without one of them."""
    image, driver, cuda = catalog.container_in(stack), stack.version(DRIVER), stack.version(CUDA)
    if driver and cuda and stack[TOOLKIT] is ABSENT:
        return wheels_fitting(catalog, cuda, driver)
    return fitting(catalog, image, driver) if image and driver else None


def wheels_fitting(catalog: Catalog, cuda: str, driver: str) -> Fitting:
    """Return how the CUDA of wheels, which have no compat package, runs on a kernel driver."""
    branch, most = driver.split(".")[0], None
    for facts in catalog.drivers:
        most = facts.max_cuda_major_without_compat if facts.branch == branch else most
    if most is None:
        return Fitting(Fit.UNKNOWN, f"no source states whether driver {branch} runs CUDA {cuda}")
    runs = parse(cuda).major <= int(most)
    reason = f"driver {branch} runs every CUDA up to {most}"
    return Fitting(Fit.NATIVE, reason) if runs else Fitting(Fit.TOO_OLD, f"{reason}; wheels have no compat package")


def fitting(catalog: Catalog, image: Container, driver: str) -> Fitting:
    """Return how an image runs on a kernel driver, given as a version (470.161.03) or a branch (470)."""
    least = image.least_branch
    if least and int(driver.split(".")[0]) < least:
        return Fitting(Fit.TOO_OLD, f"{image.id} requires driver {least} or later")
    if image.cuda is None:
        return Fitting(Fit.UNKNOWN, f"the CUDA of {image.id} is not known")
    branch, built = driver.split(".")[0], (image.cuda_driver_version_in_image or "").split(".")[0]
    if built and int(branch) >= int(built):
        return Fitting(Fit.NATIVE, f"{image.id} is built for driver {built}")
    facts = next((facts for facts in catalog.drivers if facts.branch == branch), None)
    if facts is None:
        return Fitting(Fit.UNKNOWN, f"the catalog has no driver {branch}")
    return _older(image, image.cuda, driver, facts)


def _older(image: Container, cuda: str, driver: str, facts: Driver) -> Fitting:
    """Return how an image runs on a driver older than the one that it is built for."""
    major = parse(cuda).major
    if facts.max_cuda_major_without_compat and major <= int(facts.max_cuda_major_without_compat):
        return Fitting(Fit.NATIVE, f"driver {facts.branch} runs every CUDA {major}")
    has = f"{image.id} has CUDA {cuda}"
    if facts.too_old_for_cuda and cuda in facts.too_old_for_cuda:
        return Fitting(Fit.TOO_OLD, f"{has}, for which its compat package does not work on driver {facts.branch}")
    if facts.compat_from and facts.compat_cuda and cuda in facts.compat_cuda:
        if "." in driver and parse(driver) < parse(facts.compat_from):
            return Fitting(
                Fit.TOO_OLD, f"{has}, whose compat package needs {facts.compat_from} of driver {facts.branch}"
            )
        return Fitting(Fit.COMPAT, f"{has} and runs by its compat package; GPUs for data centers only")
    return Fitting(Fit.UNKNOWN, f"no source states whether driver {facts.branch} runs CUDA {cuda}")


def minimum_driver(catalog: Catalog, of: Container | str) -> str:
    """Return the lowest branch of the catalog that runs an image, or a CUDA of wheels, directly; "" without one."""
    branches = sorted((driver.branch for driver in catalog.drivers), key=int)
    fits = wheels_fitting if isinstance(of, str) else fitting
    return next((branch for branch in branches if fits(catalog, of, branch).fit is Fit.NATIVE), "")  # type: ignore[arg-type]


def driver_lack(catalog: Catalog, item: Planned, host: str) -> str:
    """Return why a case can't run on its driver, with a branch that would do; "" unless it is known not to run.

    The driver is `host`, that of the machine; where that is "none", it is the cell's.
    """
    driver = driver_of(item, host)
    return "" if driver == NONE else _runnable(catalog, item, [driver])[1]


def runnable(catalog: Catalog, item: Planned, drivers: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return the branches among `drivers` (versions or branches) that a case may use, or the reason why there is none.

    These are the branches known to run the case's image, directly or with its compat package, lowest first; if
    there are none, the branches for which the catalog has no answer. If the cell names a driver, no other counts. No
    branch and no reason: any driver will do.
    """
    driver = item.cell.stack.version(DRIVER)
    return _runnable(catalog, item, [driver] if driver else sorted(drivers, key=parse))


def _runnable(catalog: Catalog, item: Planned, drivers: Sequence[str]) -> tuple[tuple[str, ...], str]:
    image = catalog.bases.get(item.cell.base)
    if item.level is not Level.GPU:
        return (), ""
    if not isinstance(image, Container):
        requested = item.cell.stack.version(DRIVER)
        return ((requested.split(".")[0],) if requested else ()), ""
    fits = {driver: fitting(catalog, image, driver) for driver in drivers}
    for accepted in ((Fit.NATIVE, Fit.COMPAT), (Fit.UNKNOWN,)):
        if branches := dict.fromkeys(driver.split(".")[0] for driver in drivers if fits[driver].fit in accepted):
            return tuple(branches), ""
    return (), _too_old(drivers, fits[drivers[-1]], minimum_driver(catalog, image)) if drivers else ""


def _too_old(drivers: Sequence[str], newest: Fitting, would: str) -> str:
    """Return the reason why no driver will do: the newest one's, with a branch that would do."""
    several = len(drivers) > 1
    return (
        f"driver{'s' * several} {' and '.join(drivers)} {'are' if several else 'is'} too old: {newest.reason}; "
        f"{f'driver {would} would do' if would else 'none is known to do'}"
    )


def driver_branches(features: Iterable[str]) -> tuple[str, ...]:
    """Return the driver branches among a cluster's node features, lowest first: 535 for driver535."""
    numbers = {match[1] for feature in features if (match := re.fullmatch(r"driver(\d+)", feature))}
    return tuple(sorted(numbers, key=int))


def driver_of(item: Planned, host: str | None) -> str:
    """Return the driver of a case: the machine's, or the cell's where that is "none" or unknown."""
    return host if host and host != NONE else str(item.cell.stack[DRIVER])


def user_mode_driver(cuda: Cuda, host: str | None, *, inside: bool) -> str:
    """Return the text of a record for the user-mode driver that the ranks load, "" without one.

    `host` is the kernel driver, `inside`: the user-mode driver was found in an image.
    """
    if cuda.version is None:
        return ""
    name, compat = cuda.driver or f"CUDA {cuda.version}", cuda.is_compat(None if host == NONE else host)
    package = f"compat package{' of the image' if inside else ''}"
    return name if compat is None else f"{name} ({package if compat else 'the host driver itself'})"


def driver_note(catalog: Catalog, item: Planned, host: str | None, cuda: Cuda | None) -> str:
    """Return the note on the driver in the record of a case; "" where no compat package is expected or found.

    It states how the image runs on the driver by the catalog, and the user-mode driver found. `cuda` is the driver
    found, None where it was not queried.
    """
    image, driver = catalog.bases.get(item.cell.base), driver_of(item, host)
    if item.level is not Level.GPU or not isinstance(image, Container) or driver == NONE:
        return ""
    expected = fitting(catalog, image, driver)
    compat = cuda.is_compat(None if host == NONE else host) if cuda else None
    if compat is not True and expected.fit is not Fit.COMPAT:
        return ""
    if cuda is None or compat is None:
        return f"driver {driver}: {expected.reason}; not measured"
    predicted = {Fit.COMPAT: True, Fit.NATIVE: False}.get(expected.fit, compat)
    word = "found" if predicted is compat else "but found"
    return f"driver {driver}: {expected.reason}; {word}: {user_mode_driver(cuda, host, inside=True)}"


MPIRUN: Final = "mpirun"  # the launcher that a base must have; torchrun's variables need no program


class BaseFeature(str, Enum):
    """A property of a Python environment that the versions of its packages do not show."""

    CUDA = "cuda"  # torch is built with CUDA, and so with NCCL
    COMPILED_TE = "compiled-te"  # Transformer Engine has its compiled extension
    PKG_RESOURCES = "pkg_resources"  # the module of setuptools
    NVCC = "nvcc"  # CUDA's compiler


@dataclass(frozen=True)
class BaseOffer:
    """What a base offers; None is unknown. `lack` is what must be installed, built or pulled before it can start.

    `te` is the version of its compiled Transformer Engine, "none" without one. `measured`: the version was read in the
    base; otherwise it is the catalog's. `clones` are the names of the site's clones. `toolkit` is what it builds
    releases of Transformer Engine with, besides the compiler of the machine; None where it builds none.
    `no_helper` is the reason why the overlay of megatron-core has no compiled dataset helper, "" for one that has it.
    `nccl` is the version that its torch loads; `lays` is the CUDA of an image, over whose NCCL a wheel can be laid.
    """

    base: str
    lack: str = ""
    te: str | None = None
    measured: bool = False
    features: frozenset[str] | None = None  # values of BaseFeature
    clones: frozenset[str] | None = None
    mpirun: bool | None = None
    no_helper: str = ""
    toolkit: Toolkit | None = None
    nccl: str | None = None
    lays: str | None = None

    @property
    def sharing(self) -> SharedNccl | None:
        """Return the NCCL over which ranks can share a GPU, None without one."""
        from matrix.ground.catalog import distributions

        return distributions.shared_nccl(self.nccl, Toolkit(cuda=self.lays) if self.lays else self.toolkit)


@dataclass(frozen=True)
class Placement:
    """The GPUs that a case holds while it runs, and the backend of its process groups.

    `nccl` is that over which ranks share a GPU, None where each has its own or they use gloo. `peers`: a stand-in
    answers that the GPU has access to itself, as userbuffers ask. `each` is the number of ranks on one GPU, 0 where
    each has its own. `mps`: they do so through a private daemon of MPS.
    """

    gpus: int = 0
    backend: str = "gloo"
    note: str = ""
    nccl: SharedNccl | None = None
    peers: bool = False
    each: int = 0
    mps: bool = False


WITHOUT_GPU: Final = Placement()


def offered(
    catalog: Catalog,
    base: str,
    contents: PythonEnvironment | None = None,
    *,
    lack: str = "",
    clones: Iterable[str] | None = None,
) -> BaseOffer:
    """Return what a base offers: by its contents where they are known, else by the catalog.

    The bases of wheels have no compiled Transformer Engine: it is built where nvcc is.
    """
    contents = contents or PythonEnvironment()
    packages, features, cuda = contents.packages, contents.features, contents.torch_cuda
    spec, names = catalog.find_base(base), None if clones is None else frozenset(clones)
    torch = packages.get("torch", spec.torch if isinstance(spec, Wheels) else None)
    builds = isinstance(spec, Wheels) or (base == HOST and torch)  # the catalog may be without the host
    toolkit = Toolkit(cuda=cuda, torch=torch) if builds else None
    te = NONE if isinstance(spec, (Wheels, Image)) else None
    offer = BaseOffer(base, lack, te, clones=names, toolkit=toolkit)
    if isinstance(spec, Container):
        offer = replace(offer, te=spec.te, nccl=spec.nccl, lays=cuda or spec.cuda)
    if features is None:
        return offer
    nccl = next((version for name, version in packages.items() if name.startswith("nvidia-nccl-cu")), offer.nccl)
    te = packages.get("transformer-engine", NONE) if BaseFeature.COMPILED_TE.value in features else NONE
    return replace(offer, te=te, measured=True, features=frozenset(features), nccl=nccl)


def unmet(catalog: Catalog, item: Planned, offer: BaseOffer, machine: Machine) -> Lack | None:
    """Return the first requirement of a case that its base or the machine does not meet, None where it can run."""
    return next(lacks(catalog, item, offer, machine), None)


def lacks(catalog: Catalog, item: Planned, offer: BaseOffer, machine: Machine) -> Iterator[Lack]:
    """Yield each requirement of a case that its base or the machine does not meet."""
    if not item.reproducible:
        yield Lack(Kind.REPRODUCTION, "the catalog has no reproduction of it yet")
        return
    if offer.lack:
        yield Lack(Kind.BASE, offer.lack, offer.base)
    case = catalog.failure(item.failure).case_named(item.case)
    on_gpu = _on_gpu(case, item, offer, machine, catalog) if item.level is Level.GPU else ()
    yield from filter(None, (*on_gpu, *_anywhere(case, item, offer, machine, catalog)))


def place(case: Case, item: Planned, machine: Machine, offer: BaseOffer) -> Placement | Lack:
    """Return the GPUs and the backend of a case, or what the machine lacks for it.

    Each rank has its own GPU, and NCCL. With fewer GPUs, ranks share them over an NCCL that can (facts/nccl.toml).
    Where there is none, ranks that use collectives alone share them over gloo, which sends and receives no CUDA tensors
    (CaseNeed.NCCL).
    """
    if item.level is not Level.GPU or not item.gpus:
        return WITHOUT_GPU
    return _placed(item.gpus, item.ranks, case.needs, machine, offer)


def place_on_one(ranks: int, machine: Machine, offer: BaseOffer) -> Placement | Lack:
    """Return how ranks share the first GPU over NCCL, or what the base or the machine lacks for it."""
    one = replace(machine, cuda=replace(machine.cuda or Cuda(), gpus=(machine.gpus or ())[:1]))
    alone = _cuda(offer) or _placed(1, 1, (), one, offer)
    return alone if isinstance(alone, Lack) else _placed(ranks, ranks, (CaseNeed.NCCL,), one, offer)


def _placed(gpus: int, ranks: int, needs: Collection[CaseNeed], machine: Machine, offer: BaseOffer) -> Placement | Lack:
    if machine.gpus is None or len(machine.gpus) >= gpus:
        return Placement(gpus, "nccl")
    from matrix.ground.catalog import distributions

    has = len(machine.gpus)
    reason = f"CUDA shows {has}: {machine.problem}" if machine.problem else f"host has {has}"
    if not has or gpus > ranks:
        return Lack(Kind.GPUS, f"needs {counted(gpus, 'GPU')}; {reason}")
    if any(gpu.exclusive for gpu in machine.gpus):
        mode = "in exclusive compute mode: ranks can't share it; nvidia-smi -c DEFAULT"
        return Lack(Kind.GPUS, f"needs {counted(gpus, 'GPU')}; {reason}, {mode}")
    apart = next((why for need, why in APART.items() if need in needs), "")
    sharing, nccl = distributions.nccl_sharing(), offer.sharing
    processors = min((gpu.multiprocessors for gpu in machine.gpus if gpu.multiprocessors), default=0)
    carried = min(sharing.ranks, processors // sharing.blocks) if processors else sharing.ranks
    few = f" with {processors} multiprocessors, as each uses up to {sharing.blocks}" * (carried < sharing.ranks)
    most, shared, each = carried * has, f"{ranks} ranks share {counted(has, 'GPU')}", -(-ranks // has)
    if nccl and not apart and ranks <= most:
        peers = CaseNeed.PEERS in needs
        stand_in = "; stand-in: the answer that the GPU has access to itself" * peers
        return Placement(has, "nccl", f"{shared} over NCCL {nccl}{stand_in}", nccl, peers, each)
    if apart or CaseNeed.NCCL in needs:
        why = apart or (
            f"at most {most} can share {counted(has, 'GPU')}{few}"
            if nccl
            else f"NCCL {sharing.versions.text} alone lets them share it"
        )
        return Lack(Kind.NCCL, f"needs NCCL and {counted(gpus, 'GPU')}, one for each rank; {reason}, and {why}")
    return Placement(has, "gloo", f"gloo in place of NCCL: {shared}", each=each)


# Why ranks of a case can't share a GPU, by what the case needs.
APART: Final = {
    CaseNeed.MULTICAST: "multicast joins different GPUs",
    CaseNeed.NO_MULTICAST: "only different GPUs are tested for multicast",
}

Lacks = Iterator[Lack | None]


def _on_gpu(case: Case, item: Planned, offer: BaseOffer, machine: Machine, catalog: Catalog) -> Lacks:
    yield _driver(catalog, item, machine)
    yield _cuda(offer)
    yield from (_te(case, side, offer, machine) for side in (item, item.writer) if side)
    placed = place(case, item, machine, offer)
    yield placed if isinstance(placed, Lack) else None
    gpus, required, bound = machine.gpus or (), item.cell.stack.version(SM), case.releases.get(SM)
    has = sorted({gpu.sm for gpu in gpus if gpu.sm})
    if required and any(parse(sm) != parse(required) for sm in has):
        yield Lack(Kind.SM, f"needs GPUs of SM {required}, as in the report; host has SM {', '.join(has)}")
    if bound and any(sm not in bound for sm in has):
        yield Lack(Kind.SM, f"needs GPUs of SM {bound.text}; host has SM {', '.join(has)}")
    having = sum(bool(gpu.multicast) for gpu in gpus)
    if CaseNeed.MULTICAST in case.needs and having < len(gpus):
        yield Lack(Kind.MULTICAST, f"needs CUDA Multicast; {having} of {counted(len(gpus), 'GPU')} have it")
    if CaseNeed.NO_MULTICAST in case.needs and having:
        yield Lack(
            Kind.MULTICAST, f"needs GPUs without CUDA Multicast; {having} of {counted(len(gpus), 'GPU')} have it"
        )


def _anywhere(case: Case, item: Planned, offer: BaseOffer, machine: Machine, catalog: Catalog) -> Lacks:
    if item.level is Level.CONTRACT:
        return
    yield _cuda(offer) if CaseNeed.CUDA_TORCH in case.needs and item.level is not Level.GPU else None
    for module in catalog.modules:
        required = module.when.matches(item.cell.stack) and module.package not in item.overrides
        if required and offer.features is not None and module.name not in offer.features:
            yield Lack(Kind.MODULE, f"needs {module.name}, which {offer.base} lacks: {module.reason}")
    for clone in _clones(case, item, offer):
        if offer.clones is not None and clone not in offer.clones:
            yield Lack(Kind.CLONE, f"needs a clone of {clone}: megatrix sources fetch", clone)
    if CaseNeed.DATASET_HELPER in case.needs and offer.no_helper:
        yield Lack(Kind.HELPER, offer.no_helper)
    if item.launcher == MPIRUN and offer.mpirun is False:
        yield Lack(Kind.LAUNCHER, "needs mpirun (Debian, Ubuntu: apt-get install openmpi-bin); none on PATH")
    needed = case.limits.memory
    # At level gpu the container has the limit of its case; the few hundred MiB of the session are little of it.
    if needed and item.level is not Level.GPU and isinstance(catalog.bases.get(item.cell.base), (Container, Image)):
        yield Lack(Kind.MEMORY, "needs a memory cgroup, and in a container its file system is read-only")
    if needed and machine.memory is not None and needed > machine.memory:
        has = f"{machine.memory / GIB:.0f} GiB"
        yield Lack(Kind.MEMORY, f"needs {needed / GIB:.0f} GiB of memory for its limit; host has {has}")


def builds_te(item: Planned, offer: BaseOffer) -> bool:
    """Return whether a release of Transformer Engine is built for a case, where the base can build it."""
    te = item.cell.stack.version(TE)
    built = bool(te) and item.level is Level.GPU and not item.te_source and not item.compiled
    return built and offer.toolkit is not None and not (offer.measured and offer.te == te)


# How a machine without nvcc gets a Transformer Engine: the rest of that remedy.
BUNDLE: Final = ", or make a bundle with megatrix bundle --compile where nvcc is"


def _te(case: Case, item: Planned, offer: BaseOffer, machine: Machine) -> Lack | None:
    """Return the lack of a compiled Transformer Engine: that of the cell, or any where the case needs one.

    A base of wheels and the current environment can build a release.
    """
    required = item.cell.stack.version(TE)
    if item.compiled:
        return None  # its overlay has the extension
    if (not required and CaseNeed.COMPILED_TE not in case.needs) or offer.te is None:
        return None
    from matrix.ground.catalog import distributions

    text = "needs a compiled Transformer Engine" + (f" {required}" if required else "")
    if required and offer.toolkit and builds_te(item, offer):
        built = distributions.is_compiled(required, offer.toolkit, machine.compiled)
        why = distributions.build_lack(required, replace(offer.toolkit, nvcc=None if built else machine.nvcc), BUNDLE)
        if not (why or built or machine.sources is None or required in machine.sources):
            why = "the bundle has no source of it; fix: make one with megatrix bundle --select for its cases"
        return Lack(Kind.TE, f"{text}: {why}") if why else None
    if offer.te == NONE and offer.toolkit and machine.nvcc == NONE and not machine.compiled:
        return Lack(Kind.TE, f"{text}: {distributions.no_nvcc(offer.toolkit.cuda, BUNDLE)}")
    if offer.te == NONE:
        return Lack(Kind.TE, f"{text}; {offer.base} has none")
    if not required or (offer.te == required if offer.measured else minor(offer.te) == minor(required)):
        return None
    return Lack(
        Kind.TE, f"{text}; {offer.base} has {offer.te}, and an overlay holds the Python only: --compile builds a commit"
    )


def _cuda(offer: BaseOffer) -> Lack | None:
    if offer.features is None or BaseFeature.CUDA.value in offer.features:
        return None
    return Lack(Kind.CUDA, f"needs a torch with CUDA; that of {offer.base} is built without")


def _driver(catalog: Catalog, item: Planned, machine: Machine) -> Lack | None:
    required, has = item.cell.stack.version(DRIVER), machine.driver
    if has is None:
        return None
    if required and has.split(".")[0] != required.split(".")[0]:
        why = f" ({machine.problem})" if machine.problem and has == NONE else ""
        return Lack(Kind.DRIVER, f"needs driver {required}; host has {has}{why}")
    text = driver_lack(catalog, item, has)
    return Lack(Kind.DRIVER, text) if text else None


def _clones(case: Case, item: Planned, offer: BaseOffer) -> Iterator[str]:
    """Yield the names of the clones that a case needs; a package of the base at the cell's version needs none."""
    if CaseNeed.MEGATRON_LM in case.needs:
        yield "megatron-lm"
    own_te = offer.measured and offer.te == item.cell.stack[TE]
    for source in (item.source, "" if own_te else item.te_source):
        name, at, _ = source.partition("@")
        if at and name in CLONE.values():
            yield name


def possible(catalog: Catalog, item: Planned) -> bool:
    """Return whether some machine can run a case on its base: environments of wheels build releases of TE alone."""
    lack = unmet(catalog, item, offered(catalog, item.cell.base), Machine())
    return lack is None or lack.kind is not Kind.TE
