"""The dataflow engine: a user's stream program becomes a plan, the plan becomes tasks, tasks run over Arrow batches.

`shoal.dataflow.api.streams.stream` and `shoal.dataflow.api.apps.app` are what users write with; the rest is the way
from there to results.
"""
