"""Runs cases on a Slurm cluster: what they need (parts), how Slurm is asked (commands), the engine, its tasks."""
