"""Expressions over columns: trees, types, and the kernels that compute them."""
