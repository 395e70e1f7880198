"""What agents were told, and what they refused: the control plane's memory of its own words.

It lives in memory only. After a restart it is read off the reports, and an order that was sent before is recognised by
the agent by its generation. Owned by `shoal.control.workloads.dispatch`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from shoal.control.workloads.reconciler import Order, OrderKind
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.ids import NodeId, WorkloadId
from shoal.core.retry import Backoff
from shoal.model.workloads import WorkloadRecord

ORDER_BACKOFF = Backoff(first=0.2, cap=5.0)
#: The same order is not repeated sooner than this.
SAME_ORDER_SECONDS = 1.0
#: A node that refused a workload is not asked again for this long, unless nothing else fits.
REFUSAL_SECONDS = 30.0


class OrderBook:
    """The last order about each workload, and the refusals that still stand."""

    def __init__(self, *, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._orders: dict[WorkloadId, Order] = {}
        self._refusals: defaultdict[WorkloadId, dict[NodeId, tuple[str, float]]] = defaultdict(dict)

    def get(self, workload_id: WorkloadId) -> Order | None:
        """The last order about a workload, if one was given."""
        return self._orders.get(workload_id)

    def put(self, workload_id: WorkloadId, order: Order) -> None:
        """Note what became of an order."""
        self._orders[workload_id] = order

    def begin(self, record: WorkloadRecord, kind: OrderKind) -> Order:
        """An order is about to be given. Failures count on while it is the same one."""
        assert record.node_id is not None  # noqa: S101 the reconciler sends only what is placed
        known = self._orders.get(record.workload_id)
        same = (
            known is not None
            and known.kind is kind
            and known.generation == record.generation
            and known.node_id == record.node_id
        )
        order = Order(kind, record.node_id, record.generation, failures=known.failures if same and known else 0)
        self._orders[record.workload_id] = order
        return order

    def applied(self, workload_id: WorkloadId, order: Order) -> None:
        """An agent took it. Should it drop it again at once, it is not told again in a tight circle."""
        not_before = self._clock.monotonic() + SAME_ORDER_SECONDS
        self._orders[workload_id] = dataclasses.replace(order, accepted=True, failures=0, not_before=not_before)
        self._refusals.pop(workload_id, None)

    def failed(self, workload_id: WorkloadId, order: Order) -> None:
        """It is to be given again, later and later."""
        failures = order.failures + 1
        not_before = self._clock.monotonic() + ORDER_BACKOFF.delay(failures, self._entropy)
        self._orders[workload_id] = dataclasses.replace(order, failures=failures, not_before=not_before)

    def hurry(self, workload_id: WorkloadId) -> None:
        """What stood in the way of an order is gone: no waiting."""
        order = self._orders.get(workload_id)
        if order is not None and not order.accepted:
            self._orders[workload_id] = dataclasses.replace(order, not_before=0.0)

    def refused(self, workload_id: WorkloadId, node_id: NodeId, words: str) -> None:
        """A node will not have it, or it is better off elsewhere."""
        self._refusals[workload_id][node_id] = (words, self._clock.monotonic() + REFUSAL_SECONDS)

    def standing_refusals(self, workload_id: WorkloadId) -> dict[NodeId, str]:
        """The nodes that are not to be asked for now, with their words."""
        now = self._clock.monotonic()
        standing = {
            node_id: (words, until)
            for node_id, (words, until) in self._refusals.get(workload_id, {}).items()
            if until > now
        }
        if standing:
            self._refusals[workload_id] = standing
        else:
            self._refusals.pop(workload_id, None)
        return {node_id: words for node_id, (words, _until) in standing.items()}

    def forget(self, workload_id: WorkloadId) -> None:
        """Start anew with a workload, or be done with it."""
        self._orders.pop(workload_id, None)
        self._refusals.pop(workload_id, None)
