"""The job API: states and transitions, the engine protocol, and durable workflows. Knows no engine."""
