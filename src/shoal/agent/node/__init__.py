"""What is known of this machine: capacity, usage and the health of the agent."""
