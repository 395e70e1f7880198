"""The two serving agents: by roles (`agent_version` 1) and by layouts (`agent_version` 3)."""
