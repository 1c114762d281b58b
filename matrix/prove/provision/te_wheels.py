"""What is compiled in a base. The torch extension of Transformer Engine's releases: the index has it as source.

Each build has its own folder below wheels(), named after all that its result depends on. A wheel that is there is used,
whoever built it.

A source tree of Transformer Engine is built with its extension in a base that has nvcc. Only the paths that the build
takes (Layout.build) are written to the folder in which it runs, so that commits that differ elsewhere give the same
result.

megatron-core's dataset helper is compiled for source trees, too: PyPI's wheels contain it. GPTDataset and
MockGPTDataset (upstream's own training loop) require it; checkpointing and training on tensors do not.
Upstream's `compile_helpers()` runs make inside the package, which must not happen in an overlay that cells share.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from matrix.ground.catalog import distributions
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.machine import Compiled, PythonEnvironment, Toolkit
from matrix.ground.catalog.versions import NONE
from matrix.ground.errors import MatrixError, counted
from matrix.prove.provision.indexes import pip_environment
from matrix.prove.provision.project import locked, making, script
from matrix.read.commands import CommandResult, Runner, python_code, redacted, run
from matrix.read.git import Repository
from matrix.read.machine.installed import CUDA, NVCC, build_variables, compiled, nvcc, nvcc_version, version_text
from matrix.read.package_source import Contents, SourceKind, add_metadata
from matrix.read.trees import copy_files, package_files

SOURCE = Path("megatron/core/datasets/helpers.cpp")

# torch contains pybind11's headers; its folder is located without importing it.
QUESTION = (
    "import importlib.util, sysconfig as s; torch = importlib.util.find_spec('torch'); "
    "print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'), "
    "torch.submodule_search_locations[0] if torch else '', sep='\\n')"
)


def compiler() -> str | None:
    """Return the path of the C++ compiler, None without one."""
    return shutil.which("c++") or shutil.which("g++")


def build_helper(folder: Path, interpreter: Path, run: Runner, kept: Path) -> str:
    """Compile the helper of the megatron-core in `folder` for the environment of `interpreter`, which has torch.

    Compiling takes 6 s (g++ 12, one core). The folder `kept` caches results by source and environment: hundreds of
    commits have the same source. Returns "" on success, else the reason; a cell that does not use datasets runs without
    the helper.
    """
    source = folder / SOURCE
    module = re.search(r"PYBIND11_MODULE\((\w+)", source.read_text(encoding="utf-8")) if source.is_file() else None
    if module is None:
        return f"no compiled dataset helper: {SOURCE} is not in this tree"
    if (tool := compiler()) is None:
        return "no compiled dataset helper: no C++ compiler (c++, g++) on PATH"
    if (facts := run(python_code(interpreter, QUESTION))).code:
        return f"no compiled dataset helper: {interpreter} fails: {facts.complaint}"
    include, suffix, torch = facts.out.rstrip("\n").split("\n")
    headers = [f"-I{include}", f"-I{torch}/include"]
    target = source.with_name(module[1] + suffix)
    stamp = Path(torch, "version.py")  # a rebuilt environment may hold another torch
    made_from = source.read_bytes() + "\0".join([facts.out, tool]).encode()
    made_from += stamp.read_bytes() if stamp.is_file() else b""
    cached = kept / hashlib.sha256(made_from).hexdigest()
    if cached.is_file():
        shutil.copyfile(cached, target)
        return ""
    compiled = run([tool, "-O3", "-w", "-shared", "-std=c++17", "-fPIC", *headers, str(source), "-o", str(target)])
    if compiled.code:
        return f"no compiled dataset helper: {compiled.complaint}"
    kept.mkdir(parents=True, exist_ok=True)
    part = kept / f"{cached.name}.{os.getpid()}"
    shutil.copyfile(target, part)
    part.replace(cached)
    return ""


# Runs a command in the base, where this folder is writable; its two outputs are one.
RunInBase = Callable[[Sequence[str], Path], CommandResult]

SHOWN: Final = 6  # lines of a failed build
_ERROR: Final = re.compile(r"\b(error|fatal)\b|undefined reference|No such file", re.I)


def toolkit(features: Collection[str] | None, where: str, image: str = "") -> str:
    """Return what a build depends on besides its source: the version of nvcc or the digest of the image; variables.

    Raises MatrixError for a base without nvcc.
    """
    if NVCC not in (features or ()):
        raise MatrixError(
            "no CUDA compiler in this base",
            where=where,
            got=f"no nvcc on PATH, in CUDA_HOME or {CUDA}",
            expected="a CUDA toolkit, with which --compile builds Transformer Engine's extension",
            fix="install CUDA's toolkit and set CUDA_HOME, use an image that has it, or leave --compile out: "
            "level cpu has a stand-in",
        )
    return f"{image or version_text(nvcc() or NVCC)} {making_variables() or ''}".strip()


def making_variables() -> dict[str, str]:
    """Return the variables of this site that change what a build makes."""
    counts = re.compile(distributions.te_builds().extension.variables)
    return {name: value for name, value in build_variables().items() if counts.search(f"{name}={value}")}


def run_here(run: Runner) -> RunInBase:
    """Return the function that runs a build on this machine."""
    return lambda command, folder: run(command, environment={**os.environ, **build_variables()})


def build(content: Contents, tree: Path, folder: Path, python: str, run: RunInBase) -> None:
    """Build a source tree in the new folder `tree` and put the package into `folder`, as if it were installed.

    Raises MatrixError with the last errors of the compiler.
    """
    absent = export(content, tree)
    ended = run(python_code(python, script("build").format(CUDA=CUDA), str(tree)), tree)
    wheels = list((tree / "dist").glob("*.whl"))
    if ended.code or len(wheels) != 1:
        raise MatrixError(
            f"Transformer Engine {content.version} does not build",
            got=compiler_errors(ended),
            expected=f"these submodules, which the clone lacks: {', '.join(absent)}" if absent else None,
            fix="git submodule update --init" if absent else None,
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    for info in folder.glob("*.dist-info"):
        shutil.rmtree(info)
    add_metadata(content, folder)


def compiler_errors(ended: CommandResult) -> str:
    """Return the last lines of a failed build that state an error, else its last lines."""
    lines = redacted(ended.out + ended.err).splitlines()
    return "\n".join([line for line in lines if _ERROR.search(line)][-SHOWN:] or lines[-SHOWN:]) or ended.complaint


def export(content: Contents, tree: Path) -> list[str]:
    """Write what the build takes from a source into `tree`; return the submodules that the clone lacks."""
    source = content.source
    if source.kind is SourceKind.GIT:
        _, commit, _ = content.identity.split()
        with Repository(source.location) as clone:
            clone.write(commit, "", tree, lambda path: path.partition("/")[0] in source.layout.build)
            return clone.write_submodules(commit, source.layout.submodules, tree)
    root = Path(source.location)
    for path in (root / name for name in source.layout.build):
        copy_files(package_files(path) if path.is_dir() else [path] if path.is_file() else [], root, tree)
    return []


VARIABLE: Final = "MEGATRIX_WHEELS"
REFUSED: Final = "refused.txt"  # in the folder of a build: the errors of the compiler
MEMORY: Final = Path("/proc/meminfo")
_ARCHS: Final = "NVTE_CUDA_ARCHS"  # in ReleaseBuild.archs
_FLAGS: Final = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")
# A line that states why a build failed: of a compiler, of setup.py, of pip. pip repeats that something failed after it.
_STATED: Final = re.compile(r":\d+: error: |\(\d+\): error: |fatal error: |^\s*\w+Error: |^ERROR: Could not")

# Installs wheels, with what they require only if they are given, into a folder. Raises MatrixError.
Install = Callable[[Sequence[str], Path], None]


@dataclass(frozen=True)
class ReleaseBuild:
    """A build of a release's torch extension: all that its result depends on.

    `cuda` is that of torch, `compiler` the version of the C++ compiler, `archs` the value of NVTE_CUDA_ARCHS, and
    `variables` are those of the site that change a build. `wheel` is the path of the one that a bundle has, which was
    built elsewhere, by another nvcc and C++ compiler: its folder has the name of its build.
    """

    te: str
    python: str
    torch: str
    cuda: str
    nvcc: str
    compiler: str
    archs: str = ""
    variables: tuple[str, ...] = ()
    wheel: str = ""

    @property
    def name(self) -> str:
        """Return the name of the folder that keeps the wheel."""
        if self.wheel:
            return Path(self.wheel).parent.name
        parts = [f"te-{self.te}", f"torch-{self.torch}", f"cuda-{self.cuda}", f"nvcc-{self.nvcc}"]
        parts += [f"cxx-{self.compiler}", f"cp{self.python.replace('.', '')}", sysconfig.get_platform()]
        parts += [f"sm-{self.archs.replace(';', '-')}"] if self.archs else []
        digest = hashlib.sha256("\0".join(self.variables).encode()).hexdigest()[:8]
        return "-".join([*parts, *[digest] * bool(self.variables)])


def release_build(te: str, environment: PythonEnvironment, sms: Collection[str]) -> ReleaseBuild:
    """Return the build of a release in an environment here, for GPUs of these compute capabilities, or its bundle's.

    Raises MatrixError where it can't be built or imported.
    """
    torch, cuda, nvcc = environment.packages.get("torch", ""), environment.torch_cuda or "", nvcc_version()
    if wheel := compiled().get(Compiled.of(te, torch, cuda)):
        return ReleaseBuild(te, environment.minor, torch, cuda, "", "", wheel=str(wheel))
    why = distributions.build_lack(te, Toolkit(nvcc, cuda or None, torch))
    if why or environment.path is None:
        raise MatrixError(f"no compiled Transformer Engine {te}", got=why or "an environment of another machine")
    site = making_variables() | {name: os.environ[name] for name in _FLAGS if name in os.environ}
    archs = distributions.architectures(te, sms, site.pop(_ARCHS, ""))
    variables = tuple(f"{name}={value}" for name, value in site.items())
    return ReleaseBuild(te, environment.minor, torch, cuda, nvcc, compiler_version(), archs, variables)


def provide(build: ReleaseBuild, python: Path, run: Runner, install: Install, root: Path | None = None) -> Path:
    """Return the wheel of a build in `root`, by default wheels(); built if there is none. `python` is the base's.

    Raises MatrixError with the errors of the compiler. Errors in the source are kept: no case repeats them.
    """
    if build.wheel:
        return Path(build.wheel)
    kept = (root or wheels()) / build.name
    with locked(kept.parent / f"{kept.name}.lock"):
        if not (_wheels(kept) or (kept / REFUSED).is_file()):
            with making(kept) as folder, tempfile.TemporaryDirectory() as tools:
                install(distributions.te_builds().extension.tools, Path(tools))
                environment = _environment(build, Path(tools))
                if build.archs:
                    _lay_nvcc(Path(environment["PYTORCH_NVCC"]), Path(environment["CUDA_HOME"]), build.archs)
                for scripts in (("no_download", "merged_sources"), ("no_download",)):
                    (Path(tools) / "sitecustomize.py").write_text("".join(map(script, scripts)), encoding="utf-8")
                    ended = run(_command(build, python, folder), environment=environment)
                    if not (ended.code and is_final(ended.out)):
                        break  # else two sources may not be in one: each by itself
                if ended.code or not _wheels(folder):
                    if not is_final(ended.out):
                        raise _unbuilt(build, ended)
                    (folder / REFUSED).write_text(reason_of(ended), encoding="utf-8")
        if built := _wheels(kept):
            return built[0]
        raise _unbuilt(build, CommandResult(1, (kept / REFUSED).read_text("utf-8")), f"rm -r {kept} to build it again")


@dataclass(frozen=True)
class Compilation:
    """The builds of an environment for a bundle, by release.

    `lacks` are the reasons why it does not compile others, by release. `jobs` compilers run at once.
    """

    environment: PythonEnvironment
    builds: Mapping[str, ReleaseBuild]
    lacks: Mapping[str, str]
    jobs: int

    @property
    def kept(self) -> dict[str, Path]:
        """Return the wheels that were built before, by release."""
        return {te: built[0] for te, build in self.builds.items() if (built := _wheels(wheels() / build.name))}

    @property
    def toolkit(self) -> Toolkit:
        """Return what is known of the torch for which they are built."""
        return Toolkit(cuda=self.environment.torch_cuda, torch=self.environment.packages.get("torch"))

    @property
    def size(self) -> int:
        """Return the bytes that the bundle takes for them, of those that are not built yet as measured."""
        kept, measured = self.kept, distributions.te_builds().extension.wheel
        return sum(kept[te].stat().st_size if te in kept else measured for te in self.builds)

    @property
    def lines(self) -> list[str]:
        """Return what is about to be compiled, its minutes and its disk, and a line for each reason against others."""
        ready, extension = self.kept, distributions.te_builds().extension
        unbuilt = [te for te in self.builds if te not in ready]
        minutes = counted(sum(distributions.minutes(te, self.jobs) for te in unbuilt), "minute")
        work = f"about {minutes}, {extension.disk / 1e6:.0f} MB of disk during a build"
        compiled_here = f"{', '.join(unbuilt)}; {work}" if unbuilt else "none"
        built_before = [f"Transformer Engine built before: {', '.join(ready)}"] if ready else []
        reasons = {why: ", ".join(te for te in self.lacks if self.lacks[te] == why) for why in self.lacks.values()}
        refused = (f"not compiled: Transformer Engine {releases}: {why}" for why, releases in reasons.items())
        return [f"Transformer Engine compiled here: {compiled_here}", *built_before, *refused]

    def into(self, folder: Path, run: Runner, install: Install, say: Callable[[str], None]) -> None:
        """Put the wheels into a folder, each built once for all bundles. Raises MatrixError where one can't be."""
        assert self.environment.path
        for te, build in self.builds.items():
            say(f"compiles Transformer Engine {te}: {build.name}")
            wheel = provide(build, self.environment.path, run, install)
            (folder / build.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(wheel, folder / build.name / wheel.name)


def compilation(
    releases: Sequence[str], environment: PythonEnvironment, machine: tuple[str, str, str], jobs: int
) -> Compilation:
    """Return which releases an environment compiles for a `machine`: its Python, torch ("" for any) and SM.

    Raises MatrixError for an environment that is not the machine's, and without a compute capability.
    """
    python, torch, sm = machine
    version, cuda = environment.packages.get("torch", NONE), environment.torch_cuda
    fits = torch in ("", version, version.partition("+cu")[0])
    if environment.minor != python or not fits or cuda in (None, NONE):
        raise MatrixError(
            "--compile needs a virtual environment with the Python and the torch of the machine",
            got=f"{environment.path or 'no environment'}: Python {environment.minor or NONE}, torch {version}",
            expected=f"Python {python}, torch {torch or 'of the host'} with CUDA",
            fix=f"python{python} -m venv ENV && ENV/bin/pip install torch=={torch or 'VERSION'} numpy",
        )
    if not sm:
        raise MatrixError("--compile is for GPUs of one compute capability", got="no --sm", fix="--sm 90")
    toolkit = Toolkit(nvcc_version(), cuda, version)
    lacks = {te: why for te in releases if (why := distributions.build_lack(te, toolkit))}
    builds = {te: release_build(te, environment, [sm]) for te in releases if te not in lacks}
    return Compilation(environment, builds, lacks, jobs)


def is_final(output: str) -> bool:
    """Return whether another attempt would fail the same way: the compiler refused the source.

    It was not killed, and no memory, disk or network was missing.
    """
    cut_off = re.search(r"\bkilled\b|cannot allocate|no space left|out of memory", output, re.I)
    return cut_off is None and re.search(r":\d+: (fatal )?error: |\(\d+\): error: ", output) is not None


def reason_of(ended: CommandResult) -> str:
    """Return the last lines of a failed build that state why, without credentials."""
    stated = [line.strip() for line in redacted(ended.out).splitlines() if _STATED.search(line)]
    return "\n".join(stated[-SHOWN:]) or compiler_errors(ended)


def wheels(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that keeps wheels: $MEGATRIX_WHEELS, else one in the cache."""
    return Path(environ.get(VARIABLE) or default_root(environ) / "wheels").absolute()


def machine_memory(file: Path = MEMORY) -> int | None:
    """Return the available memory of this machine in bytes."""
    match = re.search(r"^MemAvailable: +(\d+) kB$", file.read_text(), re.MULTILINE) if file.is_file() else None
    return int(match[1]) * 1024 if match else None


@cache
def compiler_version() -> str:
    """Return the version of the C++ compiler: that of $CXX, else c++; "none" without one."""
    result = run([os.environ.get("CXX") or "c++", "-dumpfullversion"])
    return result.out.strip() if not result.code else "none"


def _wheels(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.whl"))


def _command(build: ReleaseBuild, python: Path, folder: Path) -> list[str]:
    package = distributions.te_builds().extension.package
    options = ["--no-cache-dir", "--no-deps", "--no-build-isolation", "--no-binary", package]
    options += ["--wheel-dir", str(folder)]
    return python_code(python, script("wheel"), "wheel", "-v", *options, f"{package}=={build.te}")


def _environment(build: ReleaseBuild, tools: Path) -> dict[str, str]:
    """Return the variables of a build; those of the site count. An nvcc on PATH may be a script outside its toolkit."""
    site = {**os.environ, **build_variables()}
    homes = [Path(nvcc).resolve().parents[1] for nvcc in (shutil.which("nvcc"), f"{CUDA}/bin/nvcc") if nvcc]
    home = site.get("CUDA_HOME") or str(next((top for top in homes if (top / "include/cuda.h").is_file()), homes[0]))
    return {
        "MAX_JOBS": str(distributions.jobs(len(os.sched_getaffinity(0)), machine_memory())),
        **({_ARCHS: build.archs} if build.archs else {}),
        **site,
        # Python's own flags have -g: nobody debugs an extension of a release, and its symbols take time and memory.
        "CFLAGS": f"{site.get('CFLAGS', '')} -g0".strip(),
        **pip_environment(os.environ),
        **({"PYTORCH_NVCC": str(tools / "nvcc")} if build.archs else {}),
        "CUDA_HOME": home,
        "PATH": os.pathsep.join([str(tools / "bin"), site.get("PATH", ""), f"{home}/bin"]),
        "PYTHONPATH": str(tools),
    }


def _lay_nvcc(path: Path, home: Path, archs: str) -> None:
    """Write an nvcc that compiles for these compute capabilities alone, as torch takes it for an extension."""
    flags = " ".join(f"-gencode arch=compute_{arch},code=sm_{arch}" for arch in archs.split(";"))
    path.write_text(script("nvcc").format(nvcc=shlex.quote(str(home / "bin" / "nvcc")), archs=flags), encoding="utf-8")
    path.chmod(0o755)


def _unbuilt(build: ReleaseBuild, ended: CommandResult, fix: str | None = None) -> MatrixError:
    text = f"Transformer Engine {build.te} does not build with torch {build.torch} and nvcc {build.nvcc}"
    return MatrixError(text, got=reason_of(ended), fix=fix)
