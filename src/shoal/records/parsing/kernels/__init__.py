"""Compiled kernels over the bytes of protobuf messages. Importing them needs numba."""
