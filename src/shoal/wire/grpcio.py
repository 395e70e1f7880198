"""Imports grpc once, quietly.

Its C core reads its settings from the environment when it is first imported and then writes to stderr by itself: a
port that is taken, a fork beside it. We raise and log such things ourselves. The environment is put back at once,
because an agent's children inherit it and may use gRPC in their own way.

Imported by `channel.py`, `server.py` and `security.py`; nobody else imports grpc.
"""

from __future__ import annotations

import os

_QUIET = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
_added = {name: value for name, value in _QUIET.items() if name not in os.environ}
os.environ.update(_added)
try:
    import grpc
    from grpc import aio
    from grpc_reflection.v1alpha.reflection import aio as _reflection
finally:
    for _name in _added:
        del os.environ[_name]

ReflectionServicer = _reflection.ReflectionServicer

__all__ = ["ReflectionServicer", "aio", "grpc"]
