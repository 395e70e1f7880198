"""The life of a workload: requests of users, groups, the reconciler and the dispatch that carries out its steps."""
