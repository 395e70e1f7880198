"""Turns records into Arrow columns: by compiled kernels where numba is installed, by protobuf where it is not."""
