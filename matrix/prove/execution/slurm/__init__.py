"""Run cases on a Slurm cluster: array specs, Slurm's commands, the queue, the engine, and its array tasks."""
