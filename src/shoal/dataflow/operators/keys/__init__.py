"""Keys of state: from the keys of a batch to slots, which keys are alive, and tables with the keys of slots."""
