"""Everything about workloads on this node: admission, the pure state machine, and the actors that carry it out."""
