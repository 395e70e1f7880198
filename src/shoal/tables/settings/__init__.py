"""What a table is made of: slices with initializers, optimizers, compressors and learning rates; admission; expiry.

Frozen values that are checked when a table is made. They know no numpy and no numba.
"""
