"""Ranks: the processes of a reproduction, started, supervised and cleared away.

`job` holds the order (Job), `matrix.kit.rank` what a rank gets (Rank), `supervisor` runs it. Nothing is imported here:
 a rank in a fresh interpreter imports this package too, and needs only its own part.
"""
