"""Commands for serving: models and layouts in the tree, which address serves what, calls of model servers."""
