"""Calls one model server: states of models, another configuration, metadata, predictions.

Every call has a deadline, and the states of several models are asked for side by side. Used by the monitor, the agents
and `shoal serving-client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from shoal.core.errors import InternalError, NotFoundError, ShoalError
from shoal.core.tasks import TaskScope
from shoal.discovery.replicas.records import ModelState
from shoal.serving.models.configs import model_spec
from shoal.serving.models.lifecycle import VersionStatus, choose_version, state_of
from shoal.wire.pb.tensorflow import framework_pb2 as tf
from shoal.wire.pb.tensorflow import serving_pb2 as pb
from shoal.wire.status import status_of
from shoal.wire.tensorflow import ModelService, PredictionService
from shoal.wire.transport import Channel

STATUS_TIMEOUT = 5.0
#: A model server loads the new models before it answers a reload.
RELOAD_TIMEOUT = 600.0
PREDICT_TIMEOUT = 30.0


class ModelServerClient:
    """One model server."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def address(self) -> str:
        """Where it is."""
        return self._channel.address

    async def versions(
        self, name: str, version: int | str | None = None, signature_name: str = "", *, timeout: float = STATUS_TIMEOUT
    ) -> tuple[VersionStatus, ...]:
        """The states of a model's versions, the lowest first. Raises `NotFoundError` for a model that is not there."""
        request = pb.GetModelStatusRequest(model_spec=model_spec(name, version, signature_name))
        answer = await self._channel.call(ModelService.GET_MODEL_STATUS, request, timeout=timeout)
        found = (
            VersionStatus(each.version, state_of(each.state), each.status.error_code, each.status.error_message)
            for each in answer.model_version_status
        )
        return tuple(sorted(found, key=lambda status: status.version))

    async def status(
        self, name: str, version: int | str | None = None, *, timeout: float = STATUS_TIMEOUT
    ) -> VersionStatus:
        """The state of a model: of its version that is available, else of its newest. A failed call is a state, too."""
        try:
            chosen = choose_version(await self.versions(name, version, timeout=timeout))
        except ShoalError as error:
            return failed_status(error)
        return chosen if chosen is not None else failed_status(NotFoundError("any version of model", name))

    async def statuses(self, names: Iterable[str], *, timeout: float = STATUS_TIMEOUT) -> dict[str, VersionStatus]:
        """The states of several models, each by itself."""
        wanted = list(names)
        found = await asyncio.gather(*(self.status(name, timeout=timeout) for name in wanted))
        return dict(zip(wanted, found, strict=True))

    def rounds(self, scope: TaskScope) -> StatusRounds:
        """Ask for states again and again. `scope` owns the calls."""
        return StatusRounds(self, scope)

    async def reload(self, config: pb.ModelServerConfig, *, timeout: float = RELOAD_TIMEOUT) -> None:
        """Have another configuration taken. Raises `ShoalError`; the configuration may have been taken all the same."""
        request = pb.ReloadConfigRequest(config=config)
        answer = await self._channel.call(ModelService.HANDLE_RELOAD_CONFIG_REQUEST, request, timeout=timeout)
        if answer.status.error_code:
            raise InternalError(
                f"the model server at {self.address} could not take its configuration: {answer.status.error_message}",
                code=answer.status.error_code,
            )

    async def metadata(
        self, name: str, fields: Sequence[str], version: int | str | None = None
    ) -> pb.GetModelMetadataResponse:
        """What a model server says about a model."""
        request = pb.GetModelMetadataRequest(model_spec=model_spec(name, version), metadata_field=fields)
        return await self._channel.call(PredictionService.GET_MODEL_METADATA, request, timeout=STATUS_TIMEOUT)

    async def predict(
        self,
        name: str,
        inputs: Mapping[str, tf.TensorProto],
        *,
        version: int | str | None = None,
        signature_name: str = "serving_default",
        timeout: float = PREDICT_TIMEOUT,
    ) -> pb.PredictResponse:
        """Call a model."""
        spec = model_spec(name, version, signature_name)
        request = pb.PredictRequest(model_spec=spec, inputs=inputs)
        return await self._channel.call(PredictionService.PREDICT, request, timeout=timeout)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._channel.close()


class StatusRounds:
    """Asks one model server for the states of its models, round by round. One that hangs delays no other."""

    def __init__(self, client: ModelServerClient, scope: TaskScope) -> None:
        self._client = client
        self._scope = scope
        self._asked: dict[str, asyncio.Task[VersionStatus]] = {}

    async def next(self, names: Iterable[str], *, within: float) -> dict[str, VersionStatus]:
        """The states that are known in time. A call that goes on is part of the round in which it ends."""
        wanted = list(names)
        for gone in self._asked.keys() - set(wanted):
            self._asked.pop(gone).cancel()
        for name in wanted:
            if name not in self._asked:
                self._asked[name] = self._scope.start(self._client.status(name), name=f"status of {name}")
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=within)
        return {name: self._asked.pop(name).result() for name in wanted if self._asked[name].done()}


def failed_status(error: ShoalError) -> VersionStatus:
    """The state of a model that could not be asked for, with the code of the failure."""
    return VersionStatus(-1, ModelState.UNKNOWN, int(status_of(error).code), error.message)


def string_tensor(rows: Sequence[bytes]) -> tf.TensorProto:
    """A tensor of serialized examples."""
    shape = tf.TensorShapeProto(dim=[tf.TensorShapeProto.Dim(size=len(rows))])
    return tf.TensorProto(dtype=tf.DT_STRING, tensor_shape=shape, string_val=rows)
