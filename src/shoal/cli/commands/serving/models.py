"""`shoal model …`: declares, publishes, loads and shows models in a coordination tree."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.connection.options import Bzid, Json, tree_command
from shoal.cli.output.tables import Column
from shoal.core.errors import InvalidError, problem

if TYPE_CHECKING:
    from shoal.discovery.mirror.portal import Portal
    from shoal.discovery.models.catalog import Catalog
    from shoal.discovery.store import CoordinationStore

app = typer.Typer(
    name="model",
    help="Models and layouts in a coordination tree (Monolith's agent_controller and agent_client).",
    no_args_is_help=True,
)

_COLUMNS = (
    Column("MODEL"),
    Column("SUB-GRAPH"),
    Column("POLICY"),
    Column("CONTAINERS", right=True),
    Column("LAYOUTS"),
    Column("PATH", rank=1, least=16),
)

_SIZES = (Column("SUB-GRAPH"), Column("BYTES", right=True), Column("PATH", rank=1, least=16))
_STATES = (Column("REPLICA"), Column("STATE"))

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name")]
Layout = Annotated[
    str, typer.Option("--layout", metavar="NAME", help="The layout's name, or its absolute path in the tree")
]
Pattern = Annotated[str, typer.Argument(metavar="MODEL:GLOB", help="Sub-graphs of a model, such as m:entry or m:ps_*")]


@tree_command(app, "declare")
async def declare(
    store: CoordinationStore,
    *,
    export_base: Annotated[
        str, typer.Argument(metavar="PATH", help="The exported model: one directory for each sub-graph")
    ],
    bzid: Bzid,
    model_name: Annotated[
        str, typer.Option("--model-name", metavar="NAME", help="The model's name [the one in its entry graph]")
    ] = "",
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            metavar="",
            help="Declare again what is declared; sub-graphs that the export does not have stay as they are",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Declare an exported model, so that its sub-graphs can be published (`--cmd=decl`).

    The name is that of the model which the entry graph calls (`saved_model.pb`), or the one in `export.json`. An entry
    follows the latest version; other sub-graphs load the latest one once.
    """
    from shoal.discovery.models.exports import load_export

    export = await asyncio.to_thread(load_export, export_base)
    if model_name and export.model_name and model_name != export.model_name:
        output.warn(f"the entry graph calls the model {export.model_name}: its peers will not be found as {model_name}")
    name = model_name or export.model_name
    if not name:
        raise InvalidError([problem("--model-name", None, "is required: the export does not name its model")])
    await _catalog(store, bzid).declare(name, export.sub_graphs, overwrite=overwrite)
    if as_json:
        output.json_document({"model_name": name, "sub_graphs": dict(sorted(export.sub_graphs.items()))})
        return
    output.data(name)
    output.words(f"declared with {', '.join(sorted(export.sub_graphs))}")


@tree_command(app, "publish")
async def publish(
    store: CoordinationStore, pattern: Pattern, *, bzid: Bzid, layout: Layout, as_json: Json = False
) -> None:
    """Add sub-graphs to a layout: the containers of the layout begin to serve them (`--cmd=pub`)."""
    _show(await _catalog(store, bzid).publish(pattern, layout), as_json=as_json)


@tree_command(app, "unpublish")
async def unpublish(
    store: CoordinationStore, pattern: Pattern, *, bzid: Bzid, layout: Layout, as_json: Json = False
) -> None:
    """Remove sub-graphs from a layout: its containers stop to serve them (`--cmd=unpub`)."""
    _show(await _catalog(store, bzid).unpublish(pattern, layout), as_json=as_json)


@tree_command(app, "list")
async def list_models(store: CoordinationStore, *, bzid: Bzid, as_json: Json = False) -> None:
    """List the declared sub-graphs, with how many containers serve each and the layouts that they are in."""
    rows = _rows(await _overview(store, bzid))
    if as_json:
        output.json_document({"models": rows})
        return
    table: list[list[str | output.Cell]] = [
        [
            row["model_name"],
            row["sub_graph"],
            row["version_policy"],
            str(len(row["containers"])),
            ", ".join(row["layouts"]),
            row["model_base_path"],
        ]
        for row in rows
    ]
    output.table(_COLUMNS, table, empty="no model is declared; `shoal model declare` declares one")


@tree_command(app, "info")
async def info(store: CoordinationStore, *, bzid: Bzid, as_json: Json = False) -> None:
    """Print everything about the namespace as JSON: models, containers and layouts (`--cmd=bzid_info`)."""
    del as_json  # it is JSON in any case
    output.json_document(await _overview(store, bzid))


@app.command("size")
def size(
    export_base: Annotated[
        str, typer.Argument(metavar="PATH", help="The exported model: one directory for each sub-graph")
    ],
    *,
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="NAME", help="Such as model.ckpt-100 [the last in the directory above PATH]"
        ),
    ] = "",
    version: Annotated[
        int | None,
        typer.Option(
            "--version", min=0, metavar="N", help="[the one of the checkpoint, else the newest of all sub-graphs]"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how many bytes each sub-graph of an export needs, with the tables of its checkpoint (was `get info`)."""
    from pathlib import Path

    from shoal.serving.resources import model_sizes

    found = model_sizes(Path(export_base), checkpoint=checkpoint, version=version)
    if as_json:
        sizes = {name: {"bytes": each.bytes, "path": str(each.path)} for name, each in found.items()}
        output.json_document({"sub_graphs": sizes})
        return
    output.table(_SIZES, [[name, str(each.bytes), str(each.path)] for name, each in found.items()])


@tree_command(app, "load")
async def load(
    store: CoordinationStore,
    model_name: ModelName,
    *,
    model_dir: Annotated[str, typer.Option("--model-dir", metavar="PATH", help="The exported model")],
    ckpt: Annotated[str, typer.Option("--ckpt", metavar="NAME", help="The checkpoint it was made from")] = "",
    num_shard: Annotated[
        int, typer.Option("--num-shard", metavar="N", help="Over how many shards it is split [the scheduler decides]")
    ] = -1,
    bzid: Bzid,
    as_json: Json = False,
) -> None:
    """Request a model from the scheduler of agents of version 2 (was `load`)."""
    from shoal.discovery.mirror.records import PortalModel

    await _portal(store, bzid).load(PortalModel(model_name, model_dir, ckpt or None, num_shard))
    if as_json:
        output.json_document({"requested": model_name})
    else:
        output.words(f"{model_name} is requested")


@tree_command(app, "unload")
async def unload(store: CoordinationStore, model_name: ModelName, *, bzid: Bzid, as_json: Json = False) -> None:
    """Withdraw the request for a model (was `unload`)."""
    await _portal(store, bzid).unload(model_name)
    if as_json:
        output.json_document({"withdrawn": model_name})
    else:
        output.words(f"{model_name} is no longer requested")


@tree_command(app, "status")
async def status(store: CoordinationStore, model_name: ModelName, *, bzid: Bzid, as_json: Json = False) -> None:
    """Show whether a model is requested, assigned to agents and served (was `status`)."""
    found = await _portal(store, bzid).status(model_name)
    if as_json:
        states = {name: state.name for name, state in found.service.items()}
        output.json_document({"portal": found.portal, "publish": found.publish, "service": states})
        return
    output.facts([("requested", _yes(found.portal)), ("assigned", _yes(found.publish))])
    rows: list[list[str | output.Cell]] = [[name, output.state(state.name)] for name, state in found.service.items()]
    output.table(_STATES, rows, empty="no agent serves it")


@tree_command(app, "clean")
async def clean(
    store: CoordinationStore,
    branches: Annotated[
        list[str], typer.Argument(metavar="BRANCH…", help="portal, publish, resource or service: all below is deleted")
    ],
    *,
    bzid: Bzid,
    as_json: Json = False,
) -> None:
    """Delete everything in parts of the tree of agents of version 2 (was `clean`). Agents are not asked."""
    from shoal.discovery.mirror.portal import Branch

    unknown = [each for each in branches if each not in set(Branch)]
    if unknown:
        raise InvalidError([problem("BRANCH", unknown[0], f"must be one of {', '.join(Branch)}")])
    deleted = {}
    for each in sorted(set(branches)):
        deleted[each] = await _portal(store, bzid).clean(Branch(each))
        if not as_json:
            output.words(f"{each}: deleted {deleted[each]}")
    if as_json:
        output.json_document({"deleted": deleted})


def _portal(store: CoordinationStore, bzid: str) -> Portal:
    from shoal.discovery.mirror.portal import Portal
    from shoal.discovery.mirror.records import SchedulerPaths

    return Portal(store, SchedulerPaths(bzid))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _catalog(store: CoordinationStore, bzid: str) -> Catalog:
    from shoal.discovery.models.catalog import Catalog
    from shoal.discovery.models.paths import ModelPaths

    return Catalog(store, ModelPaths(bzid))


async def _overview(store: CoordinationStore, bzid: str) -> dict[str, Any]:
    from shoal.discovery.models.overview import collect_overview
    from shoal.discovery.models.paths import ModelPaths

    return await collect_overview(store, ModelPaths(bzid))


def _show(found: list[str], *, as_json: bool) -> None:
    if as_json:
        output.json_document({"saved_models": found})
        return
    for name in found:
        output.data(name)


def _rows(overview: dict[str, Any]) -> list[dict[str, Any]]:
    from shoal.discovery.documents import read_record
    from shoal.discovery.models.records import DeployConfig

    rows = []
    for model, sub_graphs in overview["model_info"].items():
        for sub_graph, facts in sub_graphs.items():
            if not isinstance(facts, dict):
                continue  # a counter
            try:
                config = read_record(DeployConfig, (facts["deploy_config"] or "").encode(), at=f"{model}:{sub_graph}")
            except InvalidError as error:
                output.warn(str(error))
                config = DeployConfig()
            members = overview["layout_info"].items()
            rows.append(
                {
                    "model_name": model,
                    "sub_graph": sub_graph,
                    "version_policy": config.version_policy or "",
                    "model_base_path": config.model_base_path or "",
                    "containers": facts["bindings"],
                    "layouts": [layout for layout, names in members if f"{model}:{sub_graph}" in names],
                }
            )
    return rows
