"""Ranks: the processes of a reproduction, started, supervised and cleared away."""

from matrix.ranks.job import Job, Rank
from matrix.ranks.patience import Patience
from matrix.ranks.supervisor import Supervisor

__all__ = ["Job", "Patience", "Rank", "Supervisor"]
