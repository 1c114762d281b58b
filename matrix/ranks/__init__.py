"""Ranks: the processes of a reproduction, started, supervised and cleared away.

`matrix.ranks.job` holds the order (Job) and what a rank gets (Rank), `matrix.ranks.supervisor` runs it. Nothing is
imported here: a rank in a fresh interpreter imports this package too, and needs only its own part.
"""
