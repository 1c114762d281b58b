"""Pyxis: where it is found, how an image is named for it, and what goes into a container."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from containers.commands import Answer
from containers.pyxis import IMAGES, Pyxis, find
from containers.tools import Box, Ref

BUILT = Ref("debian-13", "localhost/megatrix/debian-13:latest", "megatrix build debian-13")
PULLED = Ref("ngc-24.07", "nvcr.io/nvidia/pytorch:24.07-py3")
NODE = {"PATH": "/usr/bin", "SLURM_CPUS_PER_TASK": "4", "PYTHONPATH": "/site", "SECRET": "s3cret", "HOME": "/home/me"}


def pyxis(folder: Path | None = None) -> Pyxis:
    return Pyxis("/usr/bin/srun", NODE, folder)


@pytest.mark.parametrize(("help", "there"), [("--container-image=[USER@][REGISTRY#]IMAGE", True), ("--cpus", False)])
def test_it_is_there_where_srun_knows_its_option(tmp_path: Path, help: str, there: bool) -> None:
    (tmp_path / "srun").touch(0o755)

    def run(
        command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> Answer:
        return Answer(0, help)

    assert (find({"PATH": str(tmp_path), IMAGES: "/squash"}, run) is not None) is there
    assert find({"PATH": str(tmp_path / "none")}, run) is None


def test_an_image_is_its_file_or_a_name_with_its_registry_set_apart(tmp_path: Path) -> None:
    (tmp_path / "debian-13.sqsh").touch()
    box = Box("name", Path("/project"))
    assert f"--container-image={tmp_path}/debian-13.sqsh" in pyxis(tmp_path).command(BUILT, box, "true")
    assert "--container-image=nvcr.io#nvidia/pytorch:24.07-py3" in pyxis(tmp_path).command(PULLED, box, "true")


def test_an_image_of_ours_that_is_no_file_names_the_line_that_makes_it_one(tmp_path: Path) -> None:
    assert pyxis(tmp_path).lack(BUILT).endswith(f"enroot import -o {tmp_path}/debian-13.sqsh podman://{BUILT.tag}")
    assert f"${IMAGES}/debian-13.sqsh" in pyxis().lack(BUILT)
    assert pyxis(tmp_path).lack(PULLED) == ""
    (tmp_path / "debian-13.sqsh").touch()
    assert pyxis(tmp_path).lack(BUILT) == ""


def test_an_image_is_known_by_the_digest_of_its_file(tmp_path: Path) -> None:
    """What stands beside it counts while it is not older; a registry's image is known by its tag."""
    file, told = tmp_path / "debian-13.sqsh", tmp_path / "debian-13.sqsh.sha256"
    file.write_bytes(b"squashed")
    digest = hashlib.sha256(b"squashed").hexdigest()
    assert pyxis(tmp_path).digest(BUILT) == f"sha256:{digest}"
    told.write_text("abcd  debian-13.sqsh\n")
    assert pyxis(tmp_path).digest(BUILT) == "sha256:abcd"
    os.utime(told, (0, 0))
    assert pyxis(tmp_path).digest(BUILT) == f"sha256:{digest}"
    assert pyxis(tmp_path).digest(PULLED) == PULLED.tag


def test_a_container_gets_what_it_is_told_and_nothing_of_the_node_s_environment() -> None:
    """Set inside of srun: what is set around it, the image's own variables override."""
    box = Box("name", Path("/project"), (Path("/project"),), (Path("/run"),), {"MEGATRIX_RUN": "/run"})
    command = pyxis().command(PULLED, box, "python3", "-m", "pytest")
    srun = command.index("/usr/bin/srun")
    around, inside = command[:srun], command[srun:]
    assert around == ["env", "-i", "PATH=/usr/bin", "SLURM_CPUS_PER_TASK=4", "HOME=/home/me"]
    assert "--cpus-per-task=4" in inside
    assert "--container-mounts=/project:/project:ro,/run:/run" in inside
    assert inside[-5:] == ["env", "MEGATRIX_RUN=/run", "python3", "-m", "pytest"]
