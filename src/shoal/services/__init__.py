"""Services: replicas of one workload with rolling updates. An engine of the job API."""

from __future__ import annotations

from shoal.services.engine import ServiceEngine

__all__ = ["ServiceEngine"]
