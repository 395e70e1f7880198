"""What tasks are made of: one operator for each kind of step, called with whole batches."""
