"""The control plane: nodes and leases, workloads and groups, placement and reconciling."""
