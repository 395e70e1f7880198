"""Where rows come from and where they go: one protocol for sources, one for sinks, and their backends."""
