"""How the control plane reaches agents: the streams that agents open, direct calls, and limits on calls in flight.

Nothing here decides what an agent is told.
"""
