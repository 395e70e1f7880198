"""Content-addressed artifacts: blobs that are named by their hash, and the bundles in which user code travels.

`bundles` is the format of a bundle, `collecting` makes one from what a user named, and `store` keeps blobs on a disk or
an object store, bounded and garbage-collected. `opening` unpacks a bundle where its code is to run. Nothing here
imports user code.
"""
