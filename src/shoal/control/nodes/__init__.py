"""The life of a node: registration, heartbeats, leases, loss, and requests of operators (cordon, drain, dead)."""
