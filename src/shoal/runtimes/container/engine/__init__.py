"""The engine behind the containers of an agent: found, chosen, connected to, and spoken to by its API."""
