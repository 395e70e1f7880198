"""TensorFlow Serving's RPCs as values, under its own service names.

A model server serves them, `shoal.serving` calls them, in clear and mostly on loopback. They are no part of
`shoal.wire.methods`: that table is of the services of a fleet, where a rule says who may call what.
"""

from __future__ import annotations

from shoal.wire.pb.tensorflow import serving_pb2 as pb
from shoal.wire.transport import Method

_MODELS = "tensorflow.serving.ModelService"
_PREDICTIONS = "tensorflow.serving.PredictionService"


class ModelService:
    """Which models a model server has, and in which state."""

    NAME = _MODELS
    GET_MODEL_STATUS = Method(_MODELS, "GetModelStatus", pb.GetModelStatusRequest, pb.GetModelStatusResponse)
    HANDLE_RELOAD_CONFIG_REQUEST = Method(
        _MODELS, "HandleReloadConfigRequest", pb.ReloadConfigRequest, pb.ReloadConfigResponse
    )


class PredictionService:
    """Calls of models."""

    NAME = _PREDICTIONS
    PREDICT = Method(_PREDICTIONS, "Predict", pb.PredictRequest, pb.PredictResponse)
    GET_MODEL_METADATA = Method(
        _PREDICTIONS, "GetModelMetadata", pb.GetModelMetadataRequest, pb.GetModelMetadataResponse
    )
