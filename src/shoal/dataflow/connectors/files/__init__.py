"""Files as sources and sinks, and how what tasks have written becomes visible."""
