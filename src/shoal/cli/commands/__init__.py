"""Client commands: each talks to a control plane, prints, and ends.

One module for each noun or verb of the command line, and what only they share: reading spec files, and waiting for
workloads. A command decides nothing about the fleet: it calls `shoal.client` and shows the answer.
"""
