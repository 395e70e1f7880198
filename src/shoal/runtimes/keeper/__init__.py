"""The keeper: the process that is the parent of an agent's children, and outlives the agent.

    agent  ── unix socket, JSON lines ──▶  keeper  ── fork, exec, reap, log pipes ──▶  workloads

One keeper runs per data directory. It knows nothing of the control plane, of specs or of restart policies: it starts
what it is told, writes down what became of it, and stops at-most-one runs when nobody extends their deadline. It
imports only the standard library and `shoal.core.faults`, so that it stays small for as long as the machine is up.

Modules that run inside the keeper: `server` (main, connections), `runs` (the life of a run), `lifecycle` (its pure
decisions), `children` (fork and exec), `loop`. Shared with the agent: `files`, `records`, `procfs`, `protocol`, `logs`.
Agent side only: `launcher`, `client`.
"""
