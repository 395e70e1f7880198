"""The processes of a serving agent: their commands, their start order, and what runs them."""
