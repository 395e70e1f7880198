"""The coordinator of a job: starts it, assigns splits, runs checkpoints, recovers lost hosts."""
