"""What the control plane knows: the working set in memory, the ledger that changes it, and pure values about workloads.

Every other room reads the fleet from here and changes it only through `Ledger`. Nothing here calls an agent.
"""
