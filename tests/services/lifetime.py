"""Processes of a test that end with it, also when its worker is cut off by a time-out or killed."""

#: In front of a command. The kernel kills the process as soon as its parent has ended.
WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
