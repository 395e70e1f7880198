"""The scheduler's tree: models that should be loaded, where, and with which resources (`agent_version` 2).

`records` is what nodes hold and where they lie, `selection` decides what an agent should load, `mirror` follows the
tree, and `registrations` keeps what an agent says about itself in it. No scheduler is part of it: the tree is a data
model that tools read and write.
"""
