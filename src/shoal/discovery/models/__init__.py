"""Models by layout: what is declared, what should be served where, and what is served now (`agent_version` 3).

`records` is what nodes hold and how they are named, `paths` where they lie. `layouts` follows what a container should
serve, `bindings` is what a container registers, and `service_map` follows which containers serve a sub-graph. `catalog`
declares, publishes and unpublishes; `overview` reads everything at once.
"""
