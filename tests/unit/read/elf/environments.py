"""An environment of small packages: this interpreter, with a folder of packages of its own and a small torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from matrix.read.elf.dynamic_linker import LinkSite
from matrix.read.elf.load_check import LoadFinding, load_report
from matrix.read.elf.python_site import PythonSite
from tests.unit.read.elf.objects import library, package, shared

TORCH_CODE = "int torch_function(void) { return 1; }"
CUDNN = "nvidia-cudnn-cu12==9.1.0.70"


@dataclass
class SmallEnvironment:
    """A folder of packages; `variables` are those of the process."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def site(self) -> PythonSite:
        """Return the environment as the check reads it."""
        program = Path(os.path.realpath("/proc/self/exe"))
        link = LinkSite.of(Path("/"), "x86-64", self.variables)
        return PythonSite(program, "3.11", (self.folder,), link, self.variables)

    def findings(self, sm: str = "") -> tuple[LoadFinding, ...]:
        """Return what does not load."""
        return load_report(self.site(), sm).findings

    def torch(self, cuda: str = "12.1", *options: str) -> None:
        """Lay out a torch with its library, which `_C` needs, and its list of libraries to preload."""
        lib = self.folder / "torch/lib"
        library(lib, "libtorch_cpu.so", TORCH_CODE)
        library(lib, "libtorch_global_deps.so", "int deps;", *options)
        needs = (f"-L{lib}", "-l:libtorch_cpu.so", "-Wl,-rpath,$ORIGIN/lib")
        shared(self.folder / "torch/_C.abi3.so", "void *PyInit__C(void) { return 0; }", *needs)
        (self.folder / "torch/version.py").write_text(f"cuda: Optional[str] = {cuda!r}\n")
        (self.folder / "torch/__init__.py").write_text("cuda_libs = {'cudnn': 'libcudnn.so.*[0-9]'}\n")
        files = ("torch/_C.abi3.so", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_global_deps.so")
        package(self.folder, "torch", "2.4.0", *files, requires=CUDNN)

    def nvidia(self, name: str, soname: str, version: str, source: str = "int unused;") -> Path:
        """Lay out a library of one of NVIDIA's packages, such as cudnn."""
        path = library(self.folder / f"nvidia/{name}/lib", soname, source)
        package(self.folder, f"nvidia-{name.replace('_', '-')}-cu12", version, str(path.relative_to(self.folder)))
        return path

    def uses_torch(self, name: str, module: str, version: str = "1.0", source: str = "torch_function") -> Path:
        """Lay out a package whose extension needs a function of torch's library, by its name."""
        code = f"int {source}(void); void *PyInit_{module}(void) {{ return (void *){source}; }}"
        lib = self.folder / "torch/lib"
        path = shared(self.folder / f"{module}.abi3.so", code, f"-L{lib}", "-l:libtorch_cpu.so")
        package(self.folder, name, version, path.name)
        return path


def by_package(findings: tuple[LoadFinding, ...]) -> Mapping[str, str]:
    """Return what was found of each package."""
    return {finding.package: finding.what for finding in findings}
