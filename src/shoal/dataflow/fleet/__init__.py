"""The engine `dataflow` on the job API: its control-plane half. Pure; it imports neither Arrow nor users' code.

The other half, the programs of a job's coordinator and task hosts, is `shoal.dataflow.execution.remote`.
"""

from __future__ import annotations

from shoal.dataflow.fleet.engine import DataflowEngine

__all__ = ["DataflowEngine"]
