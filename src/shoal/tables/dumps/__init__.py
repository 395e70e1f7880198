"""Tables as files: `arrow` is our own format, `monolith` reads and writes the entry dumps of Monolith's checkpoints.

Both leave out ids whose lifetime is over, as an expiry at this moment would. Paths go through `shoal.core.files`.
"""
