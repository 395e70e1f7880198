"""Morsels: a batch cut into slices that fit into a cache, and the stateless part of a chain run over them by workers.

Cutting copies nothing. Each worker has operators of its own and a deque of morsels; one that has none left takes from
the other end of another's. Rows come out in the order in which they came in. It is an option
(`FlowSettings.morsel_workers`): what it is worth depends on how long kernels run outside of the interpreter's lock. So
a step works alone while a batch costs little; else it tries both ways, and stays with the quicker one. Built by
`shoal.dataflow.execution.building`, called as an operator.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from shoal.core.errors import InvalidError, problem
from shoal.core.threads import SYSTEM, Threads, threads_of
from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.expressions.trees import Expression
from shoal.dataflow.language.logical import Filter, Node, OnError, Project
from shoal.dataflow.operators.base import Context, Output, StepOperator
from shoal.dataflow.plan.physical import MAIN, Edge, Stage

#: What an agent gives its workloads: threads that a task may use, by slots and `workers_per_slot`.
WORKERS_VARIABLE = "SHOAL_WORKERS"
_MOST_WORKERS = 1024
#: Bytes of a morsel: it fits into the second-level cache of a core, and what is made of it does, too.
_CACHE_BYTES = 512 * 1024
#: Rows of a morsel at least: handing over fewer costs more than working on them.
_LEAST_ROWS = 4_096


def find_workers(asked: int, environment: Mapping[str, str]) -> int:
    """How many threads share the work of a task: as asked for, else what the agent gives to each, else one."""
    text = environment.get(WORKERS_VARIABLE, "")
    if asked or not text:
        return asked or 1
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_WORKERS:
        raise InvalidError([problem(WORKERS_VARIABLE, text, f"must be a whole number from 1 to {_MOST_WORKERS}")])
    return int(text)


def rows_of_morsel(batch: Batch, workers: int) -> int:
    """Rows of a morsel of a batch: what fits into a cache, and equally many morsels for every worker.

    With one more for some of them the others would have nothing to do meanwhile.
    """
    each = max(1, -(-int(batch.nbytes) // (_CACHE_BYTES * workers)))
    rows: int = -(-batch.num_rows // (each * workers))
    return max(_LEAST_ROWS, rows)


def find_runs(stage: Stage, outputs: Sequence[Edge]) -> list[range]:
    """The steps of a stage that morsels can be run through: row by row, one behind the other, read by nobody else."""
    runs: list[range] = []
    for index, step in enumerate(stage.steps):
        if not _is_row_wise(step.node):
            continue
        if runs and runs[-1].stop == index and _is_only_reader(stage, outputs, index):
            runs[-1] = range(runs[-1].start, index + 1)
        else:
            runs.append(range(index, index + 1))
    return runs


def _is_row_wise(node: Node) -> bool:
    """Whether it is made of kernels alone. Users' functions hold the interpreter's lock, and may mind the order.

    Steps that leave rows out count them or put them aside, and workers can do neither.
    """
    if not isinstance(node, Project | Filter) or node.on_error is not OnError.FAIL:
        return False
    return isinstance(node, Project) or isinstance(node.predicate, Expression)


def _is_only_reader(stage: Stage, outputs: Sequence[Edge], index: int) -> bool:
    before = index - 1
    readers = [other for other, step in enumerate(stage.steps) if any(link.step == before for link in step.links)]
    links = stage.steps[index].links
    return (
        readers == [index]
        and len(links) == 1
        and links[0].tag == MAIN
        and not any(edge.source_step == before for edge in outputs)
    )


class _Gathering:
    """The end of a worker's chain: keeps what came out of a morsel."""

    __slots__ = ("batches",)

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def emit(self, batch: Batch) -> None:
        if batch.num_rows:
            self.batches.append(batch)

    def emit_side(self, tag: str, batch: Batch) -> None:
        """Only operators without side outputs are put here."""


class _Feeding:
    """An output that feeds the next operator."""

    __slots__ = ("_next", "_out")

    def __init__(self, following: StepOperator, out: Output) -> None:
        self._next = following
        self._out = out

    def emit(self, batch: Batch) -> None:
        if batch.num_rows:
            self._next.process(batch, self._out)

    def emit_side(self, tag: str, batch: Batch) -> None:
        """Only operators without side outputs are put here."""


class Pipeline:
    """Stateless operators, one behind the other, for one worker."""

    def __init__(self, operators: Sequence[StepOperator]) -> None:
        self.operators = tuple(operators)
        self._gathering = _Gathering()
        out: Output = self._gathering
        for operator in reversed(self.operators):
            out = _Feeding(operator, out)
        self._first = out

    def run(self, morsel: Batch) -> list[Batch]:
        """What comes of a morsel."""
        self._gathering.batches = []
        self._first.emit(morsel)
        return self._gathering.batches


class _Round:
    """One batch being worked on."""

    def __init__(self, morsels: Sequence[Batch], workers: int, threads: Threads) -> None:
        self.results: list[list[Batch]] = [[] for _ in morsels]
        self._left = len(morsels)
        self._lock = threading.Lock()  # nothing waits while it is held
        self._done = threads.event()
        self.error: BaseException | None = None
        share = -(-len(morsels) // workers)
        numbered = list(enumerate(morsels))
        self._shares = [deque(numbered[start : start + share]) for start in range(0, share * workers, share)]

    def work(self, worker: int, pipeline: Pipeline) -> None:
        """Own morsels from the front, then others' from the back."""
        while (taken := self._take(worker)) is not None:
            number, morsel = taken
            try:
                if self.error is None:
                    self.results[number] = pipeline.run(morsel)
            except BaseException as error:  # noqa: BLE001 - it is raised to the task
                self.error = error
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._done.set()

    def _take(self, worker: int) -> tuple[int, Batch] | None:
        count = len(self._shares)
        for step in range(count):
            share = self._shares[(worker + step) % count]
            try:
                return share.popleft() if step == 0 else share.pop()
            except IndexError:
                continue
        return None

    def wait(self) -> None:
        """Until every morsel is done."""
        self._done.wait()


#: Batches that each way is tried with at first, and that say what it costs.
_TRIALS = 3
#: After so many batches the other way is tried again.
_STAY = 100
#: Sharing begins when it takes at most so much of the time that working alone takes: it uses other cores for that.
_GAIN = 0.85
#: And it goes on while it takes at most so much: times vary, and the two must not take turns.
_LOSS = 0.95
#: Seconds of a batch that is not shared out, nor tried to: to wake others and to wait for them costs a part of that.
_LITTLE = 0.001


class Choice:
    """Whether batches are shared out, decided by what rows cost in both ways. Pure.

    A task begins alone. Steps that cost little are never shared out, so they cost no more than without workers.
    """

    def __init__(self) -> None:
        self._count = 0
        #: What a row cost in the last batches of each way. The least of them counts: others waited for a core.
        self._alone: deque[float] = deque(maxlen=_TRIALS)
        self._shared: deque[float] = deque(maxlen=_TRIALS)
        self._shares = False

    def next(self, rows: int) -> bool:
        """Whether the next batch, of so many rows, is shared out."""
        if len(self._alone) < _TRIALS or min(self._alone) * rows < _LITTLE:
            return False
        is_trial = self._count % _STAY == 0
        return len(self._shared) < _TRIALS or self._shares is not is_trial

    def took(self, is_shared: bool, seconds: float, rows: int) -> None:
        """What a batch cost."""
        self._count += 1
        (self._shared if is_shared else self._alone).append(seconds / max(1, rows))
        if len(self._alone) == len(self._shared) == _TRIALS:
            self._shares = min(self._shared) <= (_LOSS if self._shares else _GAIN) * min(self._alone)


class MorselStep(StepOperator):
    """Several stateless steps as one, over morsels. The task's own thread is the first of the workers."""

    def __init__(self, make: Callable[[], Sequence[StepOperator]], *, workers: int, rows: int = 0) -> None:
        self._pipelines = [Pipeline(make()) for _ in range(workers)]
        self._rows = rows
        self._choice = Choice()
        self._threads: list[threading.Thread] = []
        self._rounds: list[_Round | None] = [None] * workers
        self._use(SYSTEM)
        self._is_closed = False

    def _use(self, threads: Threads) -> None:
        self._makers = threads
        self._wanted = threads.condition()

    def open(self, context: Context) -> None:
        """Open the operators of every worker, and start the workers."""
        self._clock = context.clock
        self._use(threads_of(context.clock))
        for pipeline in self._pipelines:
            for operator in pipeline.operators:
                operator.open(context)
        for worker in range(1, len(self._pipelines)):
            thread = self._makers.thread(self._serve, worker, name=f"morsels/{context.name}/{worker}")
            self._threads.append(thread)
            thread.start()

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Run the steps over a batch."""
        workers = len(self._pipelines)
        rows = self._rows or rows_of_morsel(batch, workers)
        if workers == 1 or batch.num_rows < 2 * rows:
            made = self._pipelines[0].run(batch)
        elif self._rows:
            made = self._run_shared(batch, rows)
        else:
            is_shared, began = self._choice.next(batch.num_rows), self._clock.monotonic()
            made = self._run_shared(batch, rows) if is_shared else self._pipelines[0].run(batch)
            self._choice.took(is_shared, self._clock.monotonic() - began, batch.num_rows)
        for each in made:
            out.emit(each)

    def _run_shared(self, batch: Batch, rows: int) -> list[Batch]:
        morsels = [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]
        current = _Round(morsels, len(self._pipelines), self._makers)
        with self._wanted:
            self._rounds = [current] * len(self._pipelines)
            self._wanted.notify_all()
        current.work(0, self._pipelines[0])
        current.wait()
        if current.error is not None:
            raise current.error
        return [made for batches in current.results for made in batches]

    def _serve(self, worker: int) -> None:
        while True:
            with self._wanted:
                while self._rounds[worker] is None and not self._is_closed:
                    self._wanted.wait()
                current, self._rounds[worker] = self._rounds[worker], None
            if current is None:
                return
            current.work(worker, self._pipelines[worker])

    def close(self) -> None:
        """Stop the workers, and close their operators."""
        with self._wanted:
            self._is_closed = True
            self._wanted.notify_all()
        for thread in self._threads:
            thread.join()
        for pipeline in self._pipelines:
            for operator in pipeline.operators:
                operator.close()
