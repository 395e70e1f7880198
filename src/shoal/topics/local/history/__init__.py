"""The journal of a local log and what it means: entries, their order, the state they add up to, and snapshots."""
