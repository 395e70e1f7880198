"""Session windows: which sessions are open, their aggregates, and what was emitted of them before they ended."""
