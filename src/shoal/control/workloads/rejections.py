"""Words for the reasons why a workload fits on no node."""

from __future__ import annotations

from shoal.model.workloads import Rejection

_SHOWN = 20


def describe_rejections(rejections: tuple[Rejection, ...]) -> str:
    """Every node with its reason, in one line."""
    if not rejections:
        return "no suitable node available (no node has registered)"
    reasons = "; ".join(f"{each.node_id}: {each.message}" for each in rejections[:_SHOWN])
    more = f"; and {len(rejections) - _SHOWN} more" if len(rejections) > _SHOWN else ""
    return f"no suitable node available ({reasons}{more})"
