"""The lives of runs inside the keeper: how one starts, is watched, probed and found again, and how it ends."""
