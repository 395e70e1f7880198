"""`shoal serving-client …`: calls a model server. It speaks TensorFlow Serving's gRPC, so any such server will do."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.commands.serving import inputs as given
from shoal.cli.connection import session
from shoal.cli.connection.options import Json, ShownDuration, duration
from shoal.cli.output.tables import Column
from shoal.core.errors import InvalidError, problem

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from shoal.serving.models.client import ModelServerClient

app = typer.Typer(
    name="serving-client", help="Call a model server: states, metadata, predictions.", no_args_is_help=True
)

Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="HOST:PORT[,…]",
        help="The gRPC address of the model server; of several, profile calls all in turn and others the first"
        " [env: SHOAL_TARGET]",
    ),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="The name of the model, such as entry, ps_0 or m:entry")]
Version = Annotated[
    str | None, typer.Option("--version", metavar="N|LABEL", help="A version by number or label [the newest]")
]

Signature = Annotated[str, typer.Option("--signature", metavar="NAME", help="The signature to call")]
_COLUMNS = (
    Column("MODEL"),
    Column("VERSION", right=True),
    Column("STATE"),
    Column("CODE", right=True),
    Column("MESSAGE", least=20),
)
DEFAULT_TARGET = "127.0.0.1:8500"
_MOST_DIGITS = 19
_RELOAD_TIMEOUT = ShownDuration(minutes=10)
_PREDICT_TIMEOUT = ShownDuration(seconds=30)
_PROFILE_DURATION = ShownDuration(seconds=10)


def _targets(given: str) -> list[str]:
    import os

    from shoal.wire.addresses import parse_address

    texts = (given or os.environ.get("SHOAL_TARGET") or DEFAULT_TARGET).split(",")
    return [str(parse_address(text.strip(), field="--target")) for text in texts]


def _call(target: str, work: Callable[[ModelServerClient], Awaitable[Any]]) -> Any:
    """Do the work with a client of the first model server."""
    return _call_with_all(target, lambda clients: work(clients[0]))


def _call_with_all(target: str, work: Callable[[list[ModelServerClient]], Awaitable[Any]]) -> Any:
    """Do the work on an event loop with a client for each model server, and close them."""
    from shoal.serving.models.client import ModelServerClient
    from shoal.wire.trust.access import Access

    around = session.surroundings.get(session.Surroundings())

    async def calls() -> Any:
        transport = around.make_transport(Access(insecure=True))
        clients = [ModelServerClient(transport.connect(address)) for address in addresses]
        try:
            return await work(clients)
        finally:
            for client in clients:
                await client.close()

    addresses = _targets(target)
    return around.run(calls())


def _version(text: str | None) -> int | str | None:
    if text is None or not (text.isascii() and text.isdigit()):
        return text
    if len(text) > _MOST_DIGITS:
        raise InvalidError([problem("--version", text, f"must have at most {_MOST_DIGITS} digits")])
    return int(text)


@app.command("status")
def status(
    models: Annotated[list[str], typer.Argument(metavar="MODEL…", help="The names of the models")],
    *,
    target: Target = "",
    version: Version = None,
    as_json: Json = False,
) -> None:
    """Print the states of models, each version in its line.

    A model that the server does not have, or a server that does not answer, is shown as UNKNOWN with the reason. The
    exit code is 1 unless every model has an available version. `tfs_client --cmd_type=status` printed the same.
    """

    async def ask(client: ModelServerClient) -> list[tuple[str, Any]]:
        from shoal.core.errors import ShoalError
        from shoal.serving.models.client import failed_status

        found: list[tuple[str, Any]] = []
        for name in sorted(set(models)):
            try:
                found.extend((name, each) for each in await client.versions(name, _version(version)))
            except ShoalError as error:
                found.append((name, failed_status(error)))
        return found

    rows = _call(target, ask)
    if as_json:
        output.json_document(
            [
                {
                    "model": name,
                    "version": each.version,
                    "state": each.state.name,
                    "error_code": each.error_code,
                    "error_message": each.error_message,
                }
                for name, each in rows
            ]
        )
    else:
        shown = [
            (
                name,
                str(each.version) if each.version >= 0 else "-",
                output.state(each.state.name),
                str(each.error_code),
                each.error_message,
            )
            for name, each in rows
        ]
        output.table(_COLUMNS, shown)
    if {name for name, each in rows if each.is_available} != set(models):
        raise typer.Exit(1)


@app.command("metadata")
def metadata(
    model: Model,
    *,
    target: Target = "",
    version: Version = None,
    field: Annotated[
        list[str] | None, typer.Option("--field", metavar="NAME", help="A field; repeatable [signature_def]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what a model server says about a model, as JSON. `tfs_client --cmd_type=meta` printed the same as text."""
    del as_json  # it is JSON in any case
    from google.protobuf.json_format import MessageToDict

    from shoal.wire.pools import TENSORFLOW

    fields = [given.checked_text(each, option="--field") for each in field or ["signature_def"]]
    answer = _call(target, lambda client: client.metadata(model, fields, _version(version)))
    found: dict[str, object] = {}
    for name in sorted(answer.metadata):
        value = answer.metadata[name]
        if value.type_url:
            found[name] = MessageToDict(value, preserving_proto_field_name=True, descriptor_pool=TENSORFLOW)
        else:
            found[name] = value.value.decode(errors="replace")
    output.json_document(
        {"model": answer.model_spec.name, "version": answer.model_spec.version.value, "metadata": found}
    )


@app.command("reload")
def reload(
    config: Annotated[str, typer.Argument(metavar="FILE", help="A ModelServerConfig in text form")],
    *,
    target: Target = "",
    timeout: Annotated[
        timedelta,
        typer.Option("--timeout", parser=duration, metavar="DURATION", help="How long to wait for the models"),
    ] = _RELOAD_TIMEOUT,
    as_json: Json = False,
) -> None:
    """Have a model server take another configuration, and wait until its new models are loaded.

    `tfs_client --cmd_type=load` did the same. An agent that runs the model server may replace it again.
    """
    from shoal.core import files
    from shoal.serving.models.configs import model_names, parse_config

    parsed = parse_config(files.read_bytes(config, limit=16 * 1024 * 1024).decode(errors="replace"), where=config)
    _call(target, lambda client: client.reload(parsed, timeout=timeout.total_seconds()))
    loaded = sorted(model_names(parsed))
    if as_json:
        output.json_document({"loaded": loaded})
    else:
        output.words(f"loaded: {', '.join(loaded) or 'no models'}")


@app.command("predict")
def predict(
    model: Model,
    *,
    target: Target = "",
    version: Version = None,
    signature: Signature = "serving_default",
    row: given.Rows = None,
    data: given.Data = None,
    random: given.Random = False,
    input_type: given.InputTypeName = "instance",
    file_type: given.FileTypeName = "",
    batch_size: given.BatchSize = 8,
    has_sort_id: given.HasSortId = False,
    kafka_dump: given.KafkaDump = False,
    kafka_dump_prefix: given.KafkaDumpPrefix = False,
    lagrangex_header: given.LagrangexHeader = False,
    feature_list: given.FeatureListFile = "",
    seed: given.Seed = 0,
    name: given.InputName = "instances",
    request: given.Request = None,
    timeout: Annotated[
        timedelta, typer.Option("--timeout", parser=duration, metavar="DURATION", help="How long to wait")
    ] = _PREDICT_TIMEOUT,
    as_json: Json = False,
) -> None:
    """Call a model, and print its outputs as JSON. `tfs_client --cmd_type=get` printed the answer as text.

    Rows are serialized messages: given one by one (--row), read from a file (--data, was `--input_file`), or made up
    (--random). A file has one message, as bytes, JSON, text or a dump, or records; a framed file is read with the
    headers that are named, as `tfs_client` did.
    """
    del as_json  # it is JSON in any case
    from google.protobuf.json_format import MessageToDict

    calls = given.GivenInputs(
        name=name,
        rows=row,
        data=data,
        random=random,
        request=request,
        input_type=input_type,
        file_type=file_type,
        batch_size=batch_size,
        has_sort_id=has_sort_id,
        kafka_dump=kafka_dump,
        kafka_dump_prefix=kafka_dump_prefix,
        lagrangex_header=lagrangex_header,
        feature_list=feature_list,
        seed=seed,
    ).calls()
    if len(calls) > 1:
        raise InvalidError([problem("--data", len(calls), "one call has one file; profile takes several")])

    async def ask(client: ModelServerClient) -> Message:
        return await client.predict(
            model, calls[0], version=_version(version), signature_name=signature, timeout=timeout.total_seconds()
        )

    output.json_document(MessageToDict(_call(target, ask), preserving_proto_field_name=True))


@app.command("profile")
def profile(
    model: Model,
    *,
    target: Target = "",
    version: Version = None,
    signature: Signature = "serving_default",
    row: given.Rows = None,
    data: given.Data = None,
    random: given.Random = False,
    input_type: given.InputTypeName = "instance",
    file_type: given.FileTypeName = "",
    batch_size: given.BatchSize = 8,
    has_sort_id: given.HasSortId = False,
    kafka_dump: given.KafkaDump = False,
    kafka_dump_prefix: given.KafkaDumpPrefix = False,
    lagrangex_header: given.LagrangexHeader = False,
    feature_list: given.FeatureListFile = "",
    seed: given.Seed = 0,
    name: given.InputName = "instances",
    request: given.Request = None,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=1000, metavar="N", help="How many calls at once")
    ] = 1,
    seconds: Annotated[
        timedelta, typer.Option("--duration", parser=duration, metavar="DURATION", help="How long to measure")
    ] = _PROFILE_DURATION,
    as_json: Json = False,
) -> None:
    """Call a model again and again, and print how many calls per second it answers and how long they take.

    `tfs_client --cmd_type=profile` logged the same. The exit code is 1 when no call was answered.
    """
    from shoal.serving.models.profiling import measure

    calls = given.GivenInputs(
        name=name,
        rows=row,
        data=data,
        random=random,
        request=request,
        input_type=input_type,
        file_type=file_type,
        batch_size=batch_size,
        has_sort_id=has_sort_id,
        kafka_dump=kafka_dump,
        kafka_dump_prefix=kafka_dump_prefix,
        lagrangex_header=lagrangex_header,
        feature_list=feature_list,
        seed=seed,
    ).calls()
    in_turn = itertools.cycle(calls)

    async def ask(clients: list[ModelServerClient]) -> Any:
        servers = itertools.cycle(clients)
        return await measure(
            lambda: next(servers).predict(model, next(in_turn), version=_version(version), signature_name=signature),
            clock=session.clock(),
            seconds=seconds.total_seconds(),
            parallel=parallel,
        )

    found = _call_with_all(target, ask)
    if as_json:
        output.json_document(
            {
                "calls": found.calls,
                "errors": found.errors,
                "first_error": found.first_error,
                "seconds": round(found.seconds, 3),
                "qps": round(found.qps, 1),
                "average_ms": round(found.average_ms, 3),
                "p50_ms": round(found.p50_ms, 3),
                "p99_ms": round(found.p99_ms, 3),
            }
        )
    else:
        errors = f"{found.errors}, such as: {found.first_error}" if found.errors else "0"
        output.facts(
            [
                ("calls", str(found.calls)),
                ("errors", errors),
                ("calls per second", f"{found.qps:.1f}"),
                ("average", f"{found.average_ms:.2f} ms"),
                ("p50", f"{found.p50_ms:.2f} ms"),
                ("p99", f"{found.p99_ms:.2f} ms"),
            ]
        )
    if not found.calls:
        raise typer.Exit(1)
