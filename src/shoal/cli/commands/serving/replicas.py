"""`shoal replicas VIEW`: which address serves what, from a serving agent or from the coordination tree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.connection.options import MODELS, Bzid, Json, lazy_tree_command
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column
from shoal.core.errors import InvalidError, NotFoundError, problem

if TYPE_CHECKING:
    from shoal.cli.connection.trees import Tree
    from shoal.discovery.client import ServingAgentClient
    from shoal.discovery.store import CoordinationStore

T = TypeVar("T")

#: Views that are the children of one node, by the name of the node.
NODES = {"portal": "portal", "publish": "publish", "resources": "resource", "locks": "locks", "election": "election"}
MODEL, SERVICE = "model/", "service/"
#: The options of what requests have.
_OPTIONS = {"model_name": "--model-name", "task": "--task"}
RULE = f"must be {SERVICE}NAME, heartbeat, get, resource, {MODEL}NAME, {', '.join(NODES)}"

_TASKS = (Column("TASK"), Column("REPLICAS", right=True), Column("ADDRESSES", least=16))
_REPLICAS = (
    Column("TASK"),
    Column("REPLICA", right=True),
    Column("STATE"),
    Column("ADDRESS"),
    Column("ARCHON", rank=1),
)
_ENDPOINTS = (Column("WORKLOAD"), Column("NODE"), Column("PORT"), Column("ADDRESS"))
_VALUES = (Column("NODE"), Column("VALUE", least=16))


def register(tree: typer.Typer) -> None:
    """Add the command."""
    lazy_tree_command(tree, "replicas", panel=MODELS)(replicas)


def replicas(
    tree: Tree,
    *,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="What to show, from the list above")],
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            metavar="HOST:PORT",
            help="The serving agent, for heartbeat, get and resource [the control plane answers from its tree]",
        ),
    ] = "",
    server_type: Annotated[
        str, typer.Option("--server-type", metavar="TYPE", help="ps, entry or dense, for heartbeat and get")
    ] = "ps",
    task: Annotated[int, typer.Option("--task", min=0, metavar="N", help="The number of the task, for get")] = 0,
    model_name: Annotated[
        str, typer.Option("--model-name", metavar="NAME", help="The model, where there are several")
    ] = "",
    bzid: Bzid = "",
    as_json: Json = False,
) -> None:
    """Show which address serves what (also what Monolith's agent_client showed).

    `service/NAME` shows the named ports of the ready workloads of a service: those with the label `service`, or of a
    group of that name.

    From a serving agent: `heartbeat` (was `hb`) shows all tasks of a type, `get` (was `gr`) one task, and `resource`
    what the agent has free. Without --agent the control plane answers the first two from its tree, for --bzid.

    From the tree of a namespace: `model/NAME` (was `addr`) shows every replica of a model with its state, and the
    containers that are bound to its sub-graphs; `portal`, `publish`, `resources`, `locks` and `election` (were `get`
    with `portal`, `pub`, `res`, `lock`, `elect`) show nodes, of an election the leader first.
    """
    if view in _AGENT_VIEWS:
        show, wanted = _AGENT_VIEWS[view], _server_type(server_type)
        if agent:
            document = _ask(agent, lambda client: show(client, wanted, task, model_name))
        elif view == "resource" or tree.servers:
            raise InvalidError([problem("--agent", None, "is required")])
        else:
            document = _ask_control_plane(tree, bzid, model_name, lambda client: show(client, wanted, task, model_name))
    elif view.startswith(SERVICE):
        document = tree.call(lambda store: _endpoints_of(store, view.removeprefix(SERVICE)))
    elif view.startswith(MODEL) or view in NODES:
        if not bzid:
            raise InvalidError([problem("--bzid", None, "is required")])
        document = tree.call(lambda store: _from_tree(store, bzid, view))
    else:
        raise InvalidError([problem("VIEW", view, RULE)])
    if as_json:
        output.json_document(document)
    else:
        _print(document)


def _ask(agent: str, work: Callable[[ServingAgentClient], Awaitable[T]]) -> T:
    """Call a serving agent, in clear: it listens on loopback."""
    from shoal.cli.output import hints
    from shoal.discovery.client import ServingAgentClient
    from shoal.wire.addresses import parse_address
    from shoal.wire.trust.access import Access

    address = str(parse_address(agent, field="--agent"))
    around = session.surroundings.get(session.Surroundings())
    try:
        return _run(lambda: ServingAgentClient(around.make_transport(Access(insecure=True)).connect(address)), work)
    except InvalidError as error:
        raise hints.renamed(error, _OPTIONS) from None


def _ask_control_plane(tree: Tree, bzid: str, base_name: str, work: Callable[[ServingAgentClient], Awaitable[T]]) -> T:
    """Call the control plane that leads, which answers as an agent would."""
    from shoal.cli.output import hints
    from shoal.discovery.client import LeaderChannel, ServingAgentClient
    from shoal.wire.methods import SERVING_BASE_NAME_HEADER, SERVING_BZID_HEADER

    addresses, access = tree.connection.resolved()
    around = session.surroundings.get(session.Surroundings())

    def make() -> ServingAgentClient:
        channel = LeaderChannel(around.make_transport(access), addresses)
        return ServingAgentClient(channel, bzid=bzid, base_name=base_name)

    try:
        return _run(make, work)
    except InvalidError as error:
        headers = {SERVING_BZID_HEADER: "--bzid", SERVING_BASE_NAME_HEADER: "--model-name"}
        # A header that cannot be sent is refused before anybody reads it.
        unsent = {f"metadata.{header}": option for header, option in headers.items()}
        raise hints.renamed(error, _OPTIONS | headers | unsent) from None


def _run(make: Callable[[], ServingAgentClient], work: Callable[[ServingAgentClient], Awaitable[T]]) -> T:
    async def run() -> T:
        client = make()
        try:
            return await work(client)
        finally:
            await client.close()

    result: T = session.surroundings.get(session.Surroundings()).run(run())
    return result


def _server_type(text: str) -> Any:
    from shoal.discovery.replicas.records import ServerType

    try:
        return ServerType(text)
    except ValueError:
        raise InvalidError([problem("--server-type", text, f"must be one of {', '.join(ServerType)}")]) from None


async def _heartbeat(client: ServingAgentClient, server_type: Any, _task: int, _model: str) -> dict[str, Any]:
    return {"tasks": await client.heart_beat(server_type)}


async def _get(client: ServingAgentClient, server_type: Any, task: int, model: str) -> dict[str, Any]:
    return {"addresses": await client.get_replicas(server_type, task, model_name=model)}


async def _resource(client: ServingAgentClient, _server_type: Any, _task: int, _model: str) -> dict[str, Any]:
    return {"resource": output.to_plain(await client.get_resource())}


_EMPTY = {
    "portal": "no model is requested",
    "publish": "no model is assigned to an agent",
    "resources": "no agent reports what it has free",
    "locks": "no lock is held",
    "election": "there is no candidate",
}
_AGENT_VIEWS = {"heartbeat": _heartbeat, "get": _get, "resource": _resource}


async def _from_tree(store: CoordinationStore, bzid: str, view: str) -> dict[str, Any]:
    if view.startswith(MODEL):
        return {"replicas": await _replicas_of(store, bzid, view.removeprefix(MODEL))}
    return {view: await _values(store, bzid, NODES[view])}


async def _endpoints_of(store: CoordinationStore, service: str) -> dict[str, Any]:
    from shoal.discovery.names import check_node_name
    from shoal.discovery.services import resolve

    return {"endpoints": output.to_plain(await resolve(store, check_node_name(service, field="VIEW")))}


async def _replicas_of(store: CoordinationStore, bzid: str, model: str) -> list[dict[str, Any]]:
    """The replicas of a model: those of agents by roles with their states, and containers that are bound to it."""
    from shoal.discovery.models.paths import ModelPaths
    from shoal.discovery.models.service_map import ServiceMap
    from shoal.discovery.replicas.watcher import ReplicaWatcher

    watcher, services = ReplicaWatcher(store, bzid, model), ServiceMap(store, ModelPaths(bzid))
    for each in (watcher, services):
        each.start()
        await each.wait_loaded()
        each.close()
    rows = [
        {
            "task": task.key,
            "replica": name,
            "state": replica.stat.name,
            "address": replica.chosen_address() or "",
            "archon_address": replica.chosen_address(archon=True) or "",
        }
        for task, name, replica in watcher.table.rows()
    ]
    rows += [
        {
            "task": sub_graph,
            "replica": str(container),
            "state": "BOUND",
            "address": service.grpc or "",
            "archon_address": service.archon or "",
        }
        for sub_graph, container, service in services.bound(model)
    ]
    if not rows:
        raise NotFoundError("replicas of model", model, hint="no agent has registered one in this namespace")
    return rows


async def _values(store: CoordinationStore, bzid: str, node: str) -> dict[str, str]:
    from shoal.discovery.election import candidates_in_order
    from shoal.discovery.errors import NoNodeError
    from shoal.discovery.names import check_node_name
    from shoal.discovery.store import join

    root = f"/{check_node_name(bzid, field='--bzid')}/{node}"
    try:
        names = await store.children(root)
    except NoNodeError:
        return {}
    first = candidates_in_order(names) if node == NODES["election"] else ()
    found = {}
    for name in (*first, *(name for name in names if name not in first)):
        try:
            found[name] = (await store.get(join(root, name))).data.decode(errors="replace")
        except NoNodeError:
            continue
    return found


def _print(document: dict[str, Any]) -> None:
    (kind, found), *_ = document.items()
    rows: list[list[str | Cell]]
    if kind == "tasks":
        rows = [[name, str(len(addresses)), ", ".join(addresses)] for name, addresses in found.items()]
        output.table(_TASKS, rows, empty="no task of this type is known")
    elif kind == "addresses":
        for address in found:
            output.data(address)
        if not found:
            output.words("no replica of this task is available")
    elif kind == "resource" and found["address"]:
        output.facts([(name, str(value)) for name, value in found.items()])
    elif kind == "resource":
        output.words("the agent does not say what it has free; those of version 1 do not")
    elif kind == "endpoints":
        rows = [
            [each["workload_id"], each["node_id"], name, address]
            for each in found
            for name, address in each["ports"].items()
        ]
        output.table(_ENDPOINTS, rows, empty="no workload of this service is ready")
    elif kind == "replicas":
        rows = [
            [row["task"], row["replica"], output.state(row["state"]), row["address"], row["archon_address"]]
            for row in found
        ]
        output.table(_REPLICAS, rows)
    else:
        output.table(_VALUES, [[name, value] for name, value in found.items()], empty=_EMPTY[kind])
