"""`agent.conf`, the environment, and what they make together."""
