"""`ModelService` and `PredictionService` of the fake model server.

It is as strict as TensorFlow Serving's. Configurations are taken one by one: each waits until its new models are
loaded, also when nobody waits for the answer any longer, and fails when one of them cannot be. A server that has models
from the start listens when they are loaded, and does not start when one cannot be. A prediction is a function of its
input: each row of the first input, by name, gives one score between 0 and 1.
"""

from __future__ import annotations

import asyncio
import zlib

from shoal.core.errors import InvalidError, ShoalError, problem
from shoal.serving.models.configs import parse_config
from shoal.testing.model_server.models import FakeModels, FakeVersion
from shoal.wire.methods import methods_of
from shoal.wire.pb.tensorflow import framework_pb2 as tf
from shoal.wire.pb.tensorflow import serving_pb2 as pb
from shoal.wire.pb.tensorflow.error_codes_pb2 import Code
from shoal.wire.tensorflow import ModelService, PredictionService
from shoal.wire.transport import Call, Server, Service, Transport

OUTPUT = "scores"
SIGNATURE = "serving_default"


class FakeModelServer:
    """One model server."""

    def __init__(self, config: pb.ModelServerConfig | str | None = None) -> None:
        """`config` is what its file says, as a message or in text form."""
        self.models = FakeModels()
        #: Every method that was called.
        self.calls: list[str] = []
        #: Models whose states are not told: such calls go on until they are cancelled.
        self.hanging: set[str] = set()
        self._failure: ShoalError | None = None
        self._answering = asyncio.Event()
        self._answering.set()
        self._server: Server | None = None
        self._configuring = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()
        if config is not None:
            self.models.apply(parse_config(config) if isinstance(config, str) else config)

    async def start(self, transport: Transport, address: str = "127.0.0.1:0") -> str:
        """Serve when every model is loaded; returns the address. Raises `PreconditionError` when one cannot be."""
        await self.models.wait_loaded(self.models.names())
        services = [Service(methods_of(each), self) for each in (ModelService, PredictionService)]
        self._server = await transport.serve(address, services)
        return self._server.address

    async def stop(self) -> None:
        """Serve no longer."""
        self._answering.set()
        for task in self._reloads:
            task.cancel()
        await asyncio.gather(*self._reloads, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(0)

    def fail_calls(self, error: ShoalError | None) -> None:
        """Answer every call with this error; None answers as usual again."""
        self._failure = error

    def pause(self) -> None:
        """Answer no call until `resume`, as a process that was stopped."""
        self._answering.clear()

    def resume(self) -> None:
        """Answer again."""
        self._answering.set()

    # --- ModelService -------------------------------------------------------------------------------------

    async def get_model_status(self, request: pb.GetModelStatusRequest, call: Call) -> pb.GetModelStatusResponse:
        """The states of a model's versions."""
        await self._begin(call)
        _check_spec(request.model_spec)
        if request.model_spec.name in self.hanging:
            await asyncio.Event().wait()
        found = self.models.versions_of(request.model_spec)
        return pb.GetModelStatusResponse(model_version_status=[_status(each) for each in found])

    async def handle_reload_config_request(
        self, request: pb.ReloadConfigRequest, call: Call
    ) -> pb.ReloadConfigResponse:
        """Take another configuration."""
        await self._begin(call)
        if request.config.WhichOneof("config") != "model_config_list":
            raise InvalidError([problem("config", None, "must have a model_config_list")])
        await self.take(request.config)
        return pb.ReloadConfigResponse(status=pb.StatusProto())

    async def take(self, config: pb.ModelServerConfig) -> None:
        """Take a configuration after those before it. A caller that is cancelled ends nothing."""
        task = asyncio.ensure_future(self._take(config))  # noqa: TID251
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)
        await asyncio.shield(task)

    async def _take(self, config: pb.ModelServerConfig) -> None:
        async with self._configuring:
            before = self.models.names()
            self.models.apply(config)
            await self.models.wait_loaded(set(self.models.names()) - set(before))

    # --- PredictionService --------------------------------------------------------------------------------

    async def predict(self, request: pb.PredictRequest, call: Call) -> pb.PredictResponse:
        """One score per row."""
        await self._begin(call)
        _check_spec(request.model_spec)
        version = self.models.available_version(request.model_spec)
        if not request.inputs:
            raise InvalidError([problem("inputs", None, "must not be empty")])
        scores = [zlib.crc32(row) / 2**32 for row in _rows(request.inputs[min(request.inputs)])]
        shape = tf.TensorShapeProto(dim=[tf.TensorShapeProto.Dim(size=len(scores))])
        tensor = tf.TensorProto(dtype=tf.DT_FLOAT, tensor_shape=shape, float_val=scores)
        return pb.PredictResponse(outputs={OUTPUT: tensor}, model_spec=_answered(request.model_spec, version))

    async def get_model_metadata(self, request: pb.GetModelMetadataRequest, call: Call) -> pb.GetModelMetadataResponse:
        """The signatures of a model, or what its configuration says."""
        await self._begin(call)
        _check_spec(request.model_spec)
        if not request.metadata_field:
            raise InvalidError([problem("metadata_field", None, "must not be empty")])
        version = self.models.available_version(request.model_spec)
        answer = pb.GetModelMetadataResponse(model_spec=_answered(request.model_spec, version))
        config = self.models.config_of(request.model_spec.name)
        known = {
            "base_path": config.base_path,
            "num_versions": config.model_version_policy.latest.num_versions,
            "signature_name": (SIGNATURE,),
        }
        for name in request.metadata_field:
            if name == "signature_def":
                answer.metadata[name].Pack(_signatures())
            elif name in known:
                answer.metadata[name].value = repr(known[name]).encode()
            else:
                raise InvalidError([problem("metadata_field", name, "must be signature_def")])
        return answer

    async def _begin(self, call: Call) -> None:
        self.calls.append(call.method.rpartition("/")[2])
        await self._answering.wait()
        if self._failure is not None:
            raise self._failure


def _check_spec(spec: pb.ModelSpec) -> None:
    if not spec.name:
        raise InvalidError([problem("model_spec.name", None, "is required")])


def _status(version: FakeVersion) -> pb.ModelVersionStatus:
    state = pb.ModelVersionStatus.State.Value(version.state.name)
    status = pb.StatusProto(error_code=Code.UNKNOWN, error_message=version.error) if version.error else None
    return pb.ModelVersionStatus(version=version.number, state=state, status=status)


def _answered(spec: pb.ModelSpec, version: FakeVersion) -> pb.ModelSpec:
    answered = pb.ModelSpec(name=spec.name, signature_name=spec.signature_name or SIGNATURE)
    answered.version.value = version.number
    return answered


def _rows(tensor: tf.TensorProto) -> list[bytes]:
    if tensor.string_val:
        return list(tensor.string_val)
    count = tensor.tensor_shape.dim[0].size if tensor.tensor_shape.dim else 1
    whole = tensor.SerializeToString(deterministic=True)
    return [whole + index.to_bytes(8, "big") for index in range(count)]


def _signatures() -> pb.SignatureDefMap:
    made = pb.SignatureDefMap()
    signature = made.signature_def[SIGNATURE]
    signature.method_name = "tensorflow/serving/predict"
    any_length = tf.TensorShapeProto(dim=[tf.TensorShapeProto.Dim(size=-1)])
    signature.inputs["instances"].CopyFrom(
        tf.TensorInfo(name="instances:0", dtype=tf.DT_STRING, tensor_shape=any_length)
    )
    signature.outputs[OUTPUT].CopyFrom(tf.TensorInfo(name="scores:0", dtype=tf.DT_FLOAT, tensor_shape=any_length))
    return made
