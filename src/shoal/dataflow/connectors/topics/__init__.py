"""Topics as sources and sinks: Kafka, or the local log."""
