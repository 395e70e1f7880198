"""Which of several control planes leads, what exists only while it leads, and how calls are routed to it."""
