"""Files on this machine's own disk: writes that survive a crash, locks, files nobody else may read, reserved space.

`shoal.core.files` is for paths that users give, which may be anywhere.
"""
