"""What an interpreter is asked. It runs in that interpreter, whatever it has, and prints one JSON object."""

import importlib.metadata
import json
import platform

PACKAGES = ("torch", "megatron-core", "transformer-engine")


def main() -> None:
    """Print {"python", "packages", "torch_mpi", "torch_cuda", "built_with_mpi", "problems"}."""
    packages: dict[str, str] = {}
    problems: list[str] = []
    told: dict[str, object] = {"python": platform.python_version(), "packages": packages, "problems": problems}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "torch" in packages:
        try:
            import torch.distributed

            told["torch_cuda"] = torch.version.cuda or "none"
            told["torch_mpi"] = torch.distributed.is_available() and torch.distributed.is_mpi_available()
        except Exception as error:
            problems.append(f"import torch: {type(error).__name__}: {error}")
    if "transformer-engine" in packages:
        try:
            import transformer_engine.pytorch  # noqa: F401  (it loads the libraries that the next needs)
            import transformer_engine_torch

            told["built_with_mpi"] = transformer_engine_torch.ubuf_built_with_mpi()
        except Exception as error:
            problems.append(f"import transformer_engine: {type(error).__name__}: {error}")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
