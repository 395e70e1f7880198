"""The conformance suite of durable workflows: subclass it and provide `open_workflows`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from shoal.core.errors import InternalError
from shoal.jobs.workflows import FORMAT, STEPS, Change, Document, Workflows

ORDER = list(STEPS[FORMAT])


class NotedSteps:
    """Steps that note what they are asked for, and can hang or fail."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []
        self.given: list[Mapping[str, Document]] = []
        #: The step that hangs until the workflows are closed, or fails.
        self.hangs = self.fails = ""
        self.hanging = asyncio.Event()

    async def run(self, name: str, change: Change, done: Mapping[str, Document]) -> Document:
        """Note a step."""
        self.seen.append((change["number"], name))
        self.given.append(done)
        if name == self.hangs:
            self.hanging.set()
            await asyncio.Event().wait()
        if name == self.fails:
            raise ValueError("a bug")
        return {"said": f"{name} of {change['word']}"}


class WorkflowSuite:
    """What every kind of workflows promises."""

    @pytest.fixture
    def open_workflows(self) -> Callable[[], Workflows]:
        raise NotImplementedError

    async def test_carries_out_the_steps_in_order_with_their_results(
        self, open_workflows: Callable[[], Workflows]
    ) -> None:
        workflows, steps = open_workflows(), NotedSteps()
        await workflows.open(steps)
        try:
            await workflows.run({"job": "web", "number": 1, "word": "hé\x01"})
            assert steps.seen == [(1, name) for name in ORDER]
            assert dict(steps.given[-1]) == {name: {"said": f"{name} of hé\x01"} for name in ORDER[:-1]}
        finally:
            await workflows.close()

    @pytest.mark.parametrize("step", ORDER)
    async def test_the_next_leader_finishes_what_was_left(
        self, open_workflows: Callable[[], Workflows], step: str
    ) -> None:
        """A step that had ended is not carried out again, and the first change counts, not the second."""
        first, steps = open_workflows(), NotedSteps()
        steps.hangs = step
        await first.open(steps)
        running = asyncio.ensure_future(first.run({"job": "web", "number": 7, "word": "first"}))  # noqa: TID251
        await steps.hanging.wait()
        await first.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        second, later = open_workflows(), NotedSteps()
        await second.open(later)
        try:
            await second.run({"job": "web", "number": 7, "word": "second"})
        finally:
            await second.close()
        names = [name for _number, name in later.seen]
        left = ORDER[ORDER.index(step) :]
        assert names[: len(left)] == left
        assert later.given[0] == {name: {"said": f"{name} of first"} for name in ORDER[: ORDER.index(step)]}

    async def test_a_step_that_fails_is_told_and_can_be_tried_again(
        self, open_workflows: Callable[[], Workflows]
    ) -> None:
        workflows, steps = open_workflows(), NotedSteps()
        await workflows.open(steps)
        try:
            steps.fails = "apply"
            with pytest.raises(InternalError, match="a bug"):
                await workflows.run({"job": "web", "number": 1, "word": "x"})
            steps.fails = ""
            steps.seen.clear()
            await workflows.run({"job": "web", "number": 1, "word": "x"})
            assert steps.seen[-1] == (1, "settle")
        finally:
            await workflows.close()

    async def test_closes_twice_and_forgets(self, open_workflows: Callable[[], Workflows]) -> None:
        workflows, steps = open_workflows(), NotedSteps()
        await workflows.open(steps)
        await workflows.run({"job": "web", "number": 1, "word": "x"})
        await workflows.forget("web")
        await workflows.close()
        await workflows.close()
