"""A case that does nothing: what is left is what the project itself costs (bench/bench_slurm.py)."""

from matrix.execution.reproduction import Reproduction
from matrix.verdicts.outcome import Outcome, OutcomeKind


def test_noop(reproduction: Reproduction) -> None:
    reproduction.read(lambda: Outcome(OutcomeKind.PASSED))
