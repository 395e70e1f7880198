"""Discovery: a coordination tree with sessions and watches, and what is registered in it.

`store` is the protocol, with ZooKeeper's semantics; `embedded` is our own tree, `zookeeper` the same on ZooKeeper.
`registrar` keeps registrations in place, `election` chooses a leader.
"""
