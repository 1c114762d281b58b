"""A case that does nothing: what is left is what the project itself costs (bench/bench_slurm.py)."""

from matrix.outcome import Outcome, OutcomeKind
from matrix.reproduction import Reproduction


def test_noop(reproduction: Reproduction) -> None:
    reproduction.read(lambda: Outcome(OutcomeKind.PASSED))
