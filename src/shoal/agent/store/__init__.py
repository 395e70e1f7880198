"""What the agent keeps on disk: its database, intents, the action log and sealed secrets."""
