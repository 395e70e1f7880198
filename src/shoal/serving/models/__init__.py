"""Models: their configurations, states and files, and the model server that has them."""
