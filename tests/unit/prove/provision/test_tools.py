"""podman and docker: the choice between them, images and container settings."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from matrix.prove.provision.tools import GUARD, GUARDED, IMAGES, ContainerSpec, Pyxis, Ref, Tool, find, find_pyxis
from matrix.read.commands import CommandResult
from tests.unit.prove.provision.shell import Shell, with_tools


def test_podman_is_preferred_to_docker(tmp_path: Path) -> None:
    """A tool that fails does not count: docker's client may be installed without its daemon."""
    environ = with_tools(tmp_path, "podman", "docker")
    assert find(environ, Shell()) is not None
    found = find(environ, Shell("podman"))
    assert found is not None
    assert found.name == "docker"
    assert find(environ, Shell("info")) is None


def test_an_image_has_its_content_digest(tmp_path: Path) -> None:
    assert Tool("/bin/podman", Shell()).image("localhost/any") == "sha256:4cd62cad08b9"
    assert Tool("/bin/podman", Shell("inspect")).image("localhost/any") == ""


def test_a_container_has_the_machines_shared_memory() -> None:
    """With the default of 64 MB, a DataLoader fails that does not fail on the machine."""
    command = Tool("/bin/podman", Shell()).command(
        Ref("any", "localhost/any"), ContainerSpec("name", Path("/project")), "true"
    )
    assert f"--shm-size={shutil.disk_usage('/dev/shm').total}" in command


def test_memory_limit_of_a_container_includes_swap() -> None:
    spec = ContainerSpec("name", Path("/project"), memory=7)
    command = Tool("/bin/podman", Shell()).command(Ref("a", "a:1"), spec)
    assert [word for word in command if "memory" in word] == ["--memory=7", "--memory-swap=7"]


def test_compiled_libraries_load_from_the_temporary_folder() -> None:
    """podman and docker mount a tmpfs with noexec: Triton and torch's extensions could not load what they compile."""
    command = Tool("/bin/podman", Shell()).command(Ref("a", "a:1"), ContainerSpec("name", Path("/project")))
    assert "--tmpfs=/tmp:exec" in command


BUILT = Ref("debian-13", "localhost/megatrix/debian-13:latest", "megatrix build debian-13")
PULLED = Ref("ngc-24.07", "nvcr.io/nvidia/pytorch:24.07-py3")


def pyxis(folder: Path | None = None) -> Pyxis:
    return Pyxis("/usr/bin/srun", folder, cpus=4)


@pytest.mark.parametrize(("help", "there"), [("--container-image=[USER@][REGISTRY#]IMAGE", True), ("--cpus", False)])
def test_pyxis_is_detected_by_an_option_of_srun(tmp_path: Path, help: str, there: bool) -> None:
    (tmp_path / "srun").touch(0o755)

    def run(
        command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        return CommandResult(0, help)

    assert (find_pyxis({"PATH": str(tmp_path), IMAGES: "/squash"}, run) is not None) is there
    assert find_pyxis({"PATH": str(tmp_path / "none")}, run) is None


def test_an_image_is_a_file_or_registry_name(tmp_path: Path) -> None:
    (tmp_path / "debian-13.sqsh").touch()
    box = ContainerSpec("name", Path("/project"))
    assert f"--container-image={tmp_path}/debian-13.sqsh" in pyxis(tmp_path).command(BUILT, box, "true")
    assert "--container-image=nvcr.io#nvidia/pytorch:24.07-py3" in pyxis(tmp_path).command(PULLED, box, "true")


def test_a_missing_image_file_names_its_import(tmp_path: Path) -> None:
    assert pyxis(tmp_path).lack(BUILT).endswith(f"enroot import -o {tmp_path}/debian-13.sqsh podman://{BUILT.tag}")
    assert f"${IMAGES}/debian-13.sqsh" in pyxis().lack(BUILT)
    assert pyxis(tmp_path).lack(PULLED) == ""
    (tmp_path / "debian-13.sqsh").touch()
    assert pyxis(tmp_path).lack(BUILT) == ""


def test_an_image_has_the_digest_of_its_file(tmp_path: Path) -> None:
    """A .sha256 file counts unless it is older; the image of a registry has its tag."""
    file, recorded = tmp_path / "debian-13.sqsh", tmp_path / "debian-13.sqsh.sha256"
    file.write_bytes(b"squashed")
    digest = hashlib.sha256(b"squashed").hexdigest()
    assert pyxis(tmp_path).digest(BUILT) == f"sha256:{digest}"
    recorded.write_text("abcd  debian-13.sqsh\n")
    assert pyxis(tmp_path).digest(BUILT) == "sha256:abcd"
    os.utime(recorded, (0, 0))
    assert pyxis(tmp_path).digest(BUILT) == f"sha256:{digest}"
    assert pyxis(tmp_path).digest(PULLED) == PULLED.tag


def test_a_container_gets_its_own_environment_only() -> None:
    """Variables are set inside of srun: those of the image would override those around it."""
    box = ContainerSpec("name", Path("/project"), (Path("/project"),), (Path("/run"),), {"MEGATRIX_RUN": "/run"})
    command = pyxis().command(PULLED, box, "python3", "-m", "pytest")
    assert {"--export=NONE", "--mpi=none", "--cpus-per-task=4", "--container-readonly"} <= set(command)
    assert f"--container-mounts=/project:/project:ro,/run:/run,/project:{GUARD}:ro" in command
    assert command[-9:] == ["env", "-u", "RANK", "-u", "LOCAL_RANK", "MEGATRIX_RUN=/run", "python3", "-m", "pytest"]


def test_outside_of_a_container_nothing_runs() -> None:
    """A node whose slurmd has no Pyxis ignores srun's options and would run the command on the node."""
    done = subprocess.run(["sh", "-c", GUARDED, "sh", "echo", "ran"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (125, "")
    assert pyxis().refusal(done.returncode, done.stderr) == "the slurmd of this node has no Pyxis"


INVOKE = "slurmstepd-n1: error: Failed to invoke spank plugin stack\nsrun: error: n1: task 0: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("status", "printed", "refusal"),
    [
        (1, "E   AssertionError\nsrun: error: n1: task 0: Exited with exit code 1\n", ""),
        (139, "srun: error: n1: task 0: Segmentation fault\n", ""),
        (0, INVOKE, ""),
        (
            1,
            "slurmstepd-n1: error: pyxis: child 12 failed with error code: 1\n"
            f"slurmstepd-n1: error: pyxis:     [ERROR] No such file or directory: /x/none.sqsh\n{INVOKE}",
            "[ERROR] No such file or directory: /x/none.sqsh",
        ),
        (
            1,
            f"slurmstepd-n1: error: pyxis: couldn't chdir to /nowhere: No such file or directory\n{INVOKE}",
            "pyxis: couldn't chdir to /nowhere: No such file or directory",
        ),
        (
            2,
            "slurmstepd-n1: error: execve(): python3: No such file or directory\n",
            "execve(): python3: No such file or directory",
        ),
        (1, "FAILED tests/x.py - assert 'execve(): prted: No such file' in log\n", ""),  # output of a test
        (255, "srun: unrecognized option '--container-image=x'\n", "unrecognized option '--container-image=x'"),
    ],
)
def test_a_container_error_differs_from_a_failed_test(status: int, printed: str, refusal: str) -> None:
    """srun exits with 1 in both cases. The lines are from Pyxis 0.24.0 on Slurm 22.05.8."""
    assert pyxis().refusal(status, printed) == refusal
