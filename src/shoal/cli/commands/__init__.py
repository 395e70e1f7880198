"""Client commands: each talks to a control plane, prints, and ends.

One module for each noun or verb of the command line; `common` holds what several of them share. A command decides
nothing about the fleet: it calls `shoal.client` and shows the answer.
"""
