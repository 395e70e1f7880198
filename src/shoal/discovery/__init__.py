"""Discovery: a coordination tree with sessions and watches, and what is registered in it.

`store` is the protocol, with ZooKeeper's semantics; `embedded` is our own tree, `zookeeper` the same on ZooKeeper.
`registrar` keeps registrations in place, `election` chooses a leader.

`replicas`, `models` and `mirror` are what Monolith's agents of version 1, 3 and 2 write into the tree, byte for byte.
`service` answers from them as Monolith's `AgentService`, and `client` asks such a service.
"""
