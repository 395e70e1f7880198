"""Operators that run users' code: functions over batches and records, process functions, own operators."""
