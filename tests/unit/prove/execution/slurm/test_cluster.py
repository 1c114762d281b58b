"""What the nodes of a cluster lack, and what a case requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ground.cases.machine_requirements import offered
from matrix.ground.catalog.failure import Level
from matrix.prove.execution.slurm.client import Commands
from matrix.prove.execution.slurm.cluster import ClusterSite
from tests.unit.catalogs import planned, real
from tests.unit.engines import HOST
from tests.unit.prove.execution.slurm.memory import KNOWN, Cluster


@pytest.mark.parametrize(
    ("drivers", "option", "reason"),
    [
        ((470, 535), "--constraint=driver470|driver535", ""),  # 470 by the image's compat package
        ((510, 535), "--constraint=driver535", ""),
        ((510,), "", "driver 510 is too old: ngc-24.03 has CUDA 12.4.0.041"),
    ],
)
def test_gpu_case_requires_a_driver_for_its_image(drivers: tuple[int, ...], option: str, reason: str) -> None:
    known = replace(KNOWN, containers=real().containers, drivers=real().drivers)
    item = planned(known, base="ngc-24.03", core="none", level=Level.GPU)
    cluster = Cluster()
    cluster.nodes = "".join(f"n{driver}|driver{driver}|gpu:8|8|idle|1\n" for driver in drivers)
    lack = ClusterSite(known, HOST, Commands(call=cluster)).lack(known, item, offered(known, item.cell.base))
    assert reason in (lack.text if lack else "")
    assert (lack is None) is (reason == "")
    assert [word for command in cluster.commands for word in command if "constraint" in word] == [option] * bool(option)
