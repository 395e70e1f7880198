"""How an agent runs one kind of workload: process now; container, compose and VM behind the same protocol."""
