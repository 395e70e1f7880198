"""The transport between hosts: Arrow Flight with TLS on both sides.

`endpoint` is the `Endpoint`; `calls` carries frames by a call of Flight; `servers` has the server.
"""
