"""Assigns partitions to the members of a group. Pure: every replay of the journal gets the same assignment.

It is as even as possible, and then moves as few partitions as possible. Called by `shoal.topics.local.history.replay`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

Partition = tuple[int, int]
"""(number of the topic, number of the partition)."""


def share(
    subscriptions: Mapping[str, frozenset[int]],
    partitions: Mapping[int, int],
    before: Mapping[Partition, str],
) -> dict[Partition, str]:
    """Assign every partition of the subscribed topics to one of its subscribers.

    Args:
        subscriptions: the topics that each member wants, by number.
        partitions: how many partitions each topic has.
        before: who had what.
    """
    owned: dict[str, list[Partition]] = {member: [] for member in sorted(subscriptions)}
    free: list[Partition] = []
    wanted = sorted({topic for topics in subscriptions.values() for topic in topics} & partitions.keys())
    eligible = {topic: [member for member in owned if topic in subscriptions[member]] for topic in wanted}
    for topic in wanted:
        for number in range(partitions[topic]):
            owner = before.get((topic, number))
            if owner is not None and topic in subscriptions.get(owner, ()):
                owned[owner].append((topic, number))
            else:
                free.append((topic, number))
    for partition in free:
        least = min(eligible[partition[0]], key=lambda member: (len(owned[member]), member))
        owned[least].append(partition)
    _even_out(owned, subscriptions)
    return {partition: member for member, parts in owned.items() for partition in parts}


def _even_out(owned: dict[str, list[Partition]], subscriptions: Mapping[str, frozenset[int]]) -> None:
    """Move single partitions from those with more to those with fewer while the difference is two or more."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(owned, key=lambda member: (-len(owned[member]), member)):
            by_topic: dict[int, list[Partition]] = defaultdict(list)
            for partition in owned[giver]:
                by_topic[partition[0]].append(partition)
            takers = [
                (len(owned[member]), member, topic)
                for member in owned
                for topic in by_topic
                if topic in subscriptions[member] and len(owned[giver]) - len(owned[member]) >= 2
            ]
            if takers:
                _, taker, topic = min(takers)
                partition = max(by_topic[topic])
                owned[giver].remove(partition)
                owned[taker].append(partition)
                moved = True
                break
