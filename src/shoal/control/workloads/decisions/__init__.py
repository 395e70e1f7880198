"""What is decided about workloads: facts in, a decision out. Pure: no module here reads a clock or does I/O.

The rest of `shoal.control.workloads` gathers the facts, calls these functions and carries out what they decide.
"""
