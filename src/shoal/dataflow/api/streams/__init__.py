"""Streams as users write them: where they begin, what is done to their rows, and where they end."""
