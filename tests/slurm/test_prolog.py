"""The task prolog that prints known breaks, run by a real Slurm."""

from __future__ import annotations

import sys

from matrix.prove.provision.project import ROOT
from tests.founding import SAVE
from tests.slurm.conftest import Site

SCRIPT = """\
#!/bin/bash
export PATH={programs}:$PATH
pip install torch==2.4.1 megatron-core==0.8.0
export MEGATRIX={program}
srun --task-prolog={prolog} echo started
"""


def test_output_of_a_job_names_known_breaks(site: Site) -> None:
    """The step starts all the same."""
    folder = site.cluster.folder
    program, pip, script, log = (folder / name for name in ("megatrix", "pip", "job.sbatch", "job.log"))
    pip.write_text("#!/bin/sh\n")  # a function of this name would be read: it installs nothing
    pip.chmod(0o755)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m matrix "$@"\n')
    program.chmod(0o755)
    script.write_text(SCRIPT.format(programs=folder, program=program, prolog=f"{ROOT}/docs/ci/task-prolog.sh"))
    site.cluster.call("sbatch", "--wait", f"--output={log}", str(script))
    lines = log.read_text().splitlines()
    assert [line for line in lines if line.startswith(f"WILL BREAK: {SAVE}:")]
    assert lines[-1] == "started"
