"""Discovery: a coordination tree with sessions and watches, and what is registered in it.

    from shoal.discovery import ServerType, ServingAgentClient

`store` is the protocol, with ZooKeeper's semantics; `embedded` is our own tree, `zookeeper` the same on ZooKeeper.
`registrar` keeps registrations in place, `election` chooses a leader.

`replicas`, `models` and `mirror` are what Monolith's agents of version 1, 3 and 2 write into the tree, byte for byte.
`service` answers from them as Monolith's `AgentService`, and `client` asks such a service.

What users need is named here and looked up when it is asked for, so that nothing loads kazoo in vain. `__init__.pyi`
beside it tells type checkers the same; a test freezes it.
"""

from __future__ import annotations

#: Where each public name lives.
_HOMES: dict[str, str] = {
    "AgentResource": "shoal.discovery.mirror.records",
    "EmbeddedTree": "shoal.discovery.embedded",
    "Endpoint": "shoal.discovery.services",
    "LeaderChannel": "shoal.discovery.client",
    "ModelState": "shoal.discovery.replicas.records",
    "RemoteStore": "shoal.discovery.remote",
    "ServerType": "shoal.discovery.replicas.records",
    "ServingAgentClient": "shoal.discovery.client",
    "ZookeeperSettings": "shoal.discovery.zookeeper",
    "ZookeeperStore": "shoal.discovery.zookeeper",
    "follow": "shoal.discovery.services",
    "resolve": "shoal.discovery.services",
}

__all__ = [*_HOMES]  # noqa: PLE0604  the names are in the table above


def __getattr__(name: str) -> object:
    if name in _HOMES:
        import importlib

        globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
