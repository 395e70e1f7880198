"""Running a plan in this process: tasks, chains, channels, sources, sinks, and the engine that joins them."""
