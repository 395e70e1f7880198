"""A model server that loads nothing: TensorFlow Serving's services with answers that a test can know in advance.

`FakeModelServer` is served in the process of a test; `python -m shoal.testing.model_server` is a program with the flags
of `tensorflow_model_server`.
"""

from shoal.testing.model_server.models import FakeModels, FakeVersion
from shoal.testing.model_server.server import FakeModelServer

__all__ = ["FakeModelServer", "FakeModels", "FakeVersion"]
