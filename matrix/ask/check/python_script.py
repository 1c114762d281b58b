"""Report the packages of an interpreter. It runs in that interpreter and prints one JSON object."""

import importlib.metadata
import json
import platform
import re


def main() -> None:
    """Print {"python", "packages", "torch_mpi", "torch_cuda", "te_mpi", "problems"}."""
    packages: dict[str, str] = {}
    problems: list[str] = []
    facts: dict[str, object] = {"python": platform.python_version(), "packages": packages, "problems": problems}
    for distribution in importlib.metadata.distributions():
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        if name and version:  # of a damaged distribution they are None
            packages.setdefault(re.sub("[-_.]+", "-", name).lower(), version)
    if "torch" in packages:
        try:
            import torch.distributed

            facts["torch_cuda"] = torch.version.cuda or "none"
            facts["torch_mpi"] = torch.distributed.is_available() and torch.distributed.is_mpi_available()
        except Exception as error:
            problems.append(f"import torch: {type(error).__name__}: {error}")
    if "transformer-engine" in packages:
        try:
            import transformer_engine.pytorch  # noqa: F401  (it loads the libraries that the next import needs)
            import transformer_engine_torch

            facts["te_mpi"] = transformer_engine_torch.ubuf_built_with_mpi()
        except Exception as error:
            problems.append(f"import transformer_engine: {type(error).__name__}: {error}")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
