"""Registers the replicas of one agent, and keeps their states as its model servers report them.

A replica begins as UNKNOWN, and is UNKNOWN again when its server has not answered several times in a row. The state of
each is asked for on its own, so a server that fails or hangs changes nothing for the others. After a lost session the
registrar restores every node as it was. Called by serving agents.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, ShoalError, problem
from shoal.core.tasks import TaskScope
from shoal.discovery.documents import write_record
from shoal.discovery.registrar import Registrar
from shoal.discovery.replicas.paths import SEQUENTIAL_PREFIX, Task, parse_replica_name, replica_path
from shoal.discovery.replicas.records import ModelState, Replica, ServerType
from shoal.discovery.replicas.registrations import model_of
from shoal.discovery.store import CoordinationStore, name_of

log = logging.getLogger(__name__)

#: Seconds between two questions to a model server.
INTERVAL = 1.0
#: After so many calls without an answer in a row, a model counts as gone: one lost call makes no peer look elsewhere.
MISSED_CALLS = 3
#: Stands for a replica id that the tree is to choose.
UNSET = -1

StateOf = Callable[[str], Awaitable[ModelState]]
"""Asks a model server for the state of a model, such as `ps_3`. Raises a `ShoalError` when it does not answer."""


class ReplicaUpdater:
    """The replicas of one agent.

    Args:
        store: the tree.
        registrar: keeps the nodes; the caller starts and closes it.
        root: the node above the replicas of the model.
        replicas: the tasks of this agent, each with the addresses of its server.
        state_of: asks for the state of a model.
        clock: how time passes between two questions.
        replica_id: the number of this agent, or -1: then its entry is given the next number that is free.
    """

    def __init__(
        self,
        store: CoordinationStore,
        registrar: Registrar,
        root: str,
        replicas: Mapping[Task, Replica],
        *,
        state_of: StateOf,
        clock: Clock,
        replica_id: int = UNSET,
    ) -> None:
        self._store = store
        self._registrar = registrar
        self._root = root
        self._replicas = {task: replace(each, stat=ModelState.UNKNOWN) for task, each in replicas.items()}
        self._state_of = state_of
        self._clock = clock
        self._replica_id = replica_id
        self._scope = TaskScope("replica updater")

    @property
    def replica_id(self) -> int:
        """The number of this agent; -1 before `start` when the tree is to choose it."""
        return self._replica_id

    @property
    def states(self) -> dict[Task, ModelState]:
        """The states that were reported last."""
        return {task: replica.stat for task, replica in self._replicas.items()}

    async def start(self) -> None:
        """Register every replica, and begin to ask for states."""
        if self._replica_id == UNSET:
            self._replica_id = await self._claim_number()
        for task in self._replicas:
            self._register(task)
        for task in self._replicas:
            self._scope.start(self._follow(task), name=task.key)

    async def close(self) -> None:
        """Ask no longer, and withdraw every replica."""
        await self._scope.close()
        if self._replica_id != UNSET:
            for task in self._replicas:
                self._registrar.withdraw(self._path(task))

    async def failed(self) -> None:
        """Raise what ended a loop unexpectedly."""
        await self._scope.failed()

    async def _claim_number(self) -> int:
        """Create the node of the entry as a sequential one; its number is that of the whole agent."""
        entry = next((task for task in self._replicas if task.server_type is ServerType.ENTRY), None)
        if entry is None:
            hint = "set MY_POD_NAME or REPLICA_ID, differently on each machine"
            raise InvalidError([problem("replica_id", None, "is required by an agent that runs no entry")], hint=hint)
        made = await self._store.create(
            f"{self._root}/{entry.key}/{SEQUENTIAL_PREFIX}",
            write_record(self._replicas[entry]),
            ephemeral=True,
            sequential=True,
            makepath=True,
        )
        number = parse_replica_name(name_of(made))
        if number is None:
            raise InvalidError([problem("replica_id", made, "must end with a number")])
        return number

    async def _follow(self, task: Task) -> None:
        model, missed = model_of(task), 0
        while True:
            try:
                state, missed = await self._state_of(model), 0
            except ShoalError as error:
                missed += 1
                state = ModelState.UNKNOWN if missed >= MISSED_CALLS else self._replicas[task].stat
                if state is not self._replicas[task].stat:
                    log.warning("model %s: its server does not answer: %s", model, error)
            if state is not self._replicas[task].stat:
                self._replicas[task] = replace(self._replicas[task], stat=state)
                self._register(task)
            await self._clock.sleep(INTERVAL)

    def _register(self, task: Task) -> None:
        self._registrar.register(self._path(task), write_record(self._replicas[task]))

    def _path(self, task: Task) -> str:
        return replica_path(self._root, task, self._replica_id)
