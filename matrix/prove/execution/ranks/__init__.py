"""Ranks: the processes of a reproduction. This package starts, supervises and ends them.

`job` defines RankJob, `matrix.kit.rank` the Rank object that a body receives, `supervisor` runs a job. This module
imports nothing, because a rank in a new interpreter imports the package too and needs only part of it.
"""
