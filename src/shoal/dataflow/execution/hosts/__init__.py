"""Task hosts: the processes or threads that run tasks, and how the coordinator talks to them."""
