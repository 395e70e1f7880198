"""Apps as users write them: their topics, tables and agents, and the life of their dataflows."""
