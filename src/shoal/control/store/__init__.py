"""Where the control plane remembers: one protocol, SQLite and PostgreSQL behind it."""
