"""Parity: a training step under a layout must have the numbers of the same step on one rank."""
