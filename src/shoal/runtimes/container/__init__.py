"""The container runtime: workloads as containers of a Docker or Podman engine.

    finding   where the engine listens, and a Podman service of our own when only its binary is there
    api       calls to the Docker Engine API, with typed errors
    failures  which `FailureReason` an engine error is
    creating  a run request as the body of a create call (pure)

The agent restarts containers itself: the engine's own restart policy is always `no`.
"""
