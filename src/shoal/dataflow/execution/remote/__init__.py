"""The programs of a dataflow job on a fleet: its coordinator and its task hosts, each a workload of an agent."""
