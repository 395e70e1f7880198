"""Serving agents: keep model servers running and configured, and tell the fleet which models they serve."""
