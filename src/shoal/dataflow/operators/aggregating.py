"""What the operators that aggregate share: the plan of their aggregates, made for the columns of the first rows.

`shoal.dataflow.operators.running`, `counts`, `sessions` and `windows` build on it.
"""

from __future__ import annotations

from abc import abstractmethod

from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.operators.aggregates.plan import AggregatePlan
from shoal.dataflow.operators.base import StepOperator
from shoal.dataflow.operators.grouping import Grouping


class Aggregating(StepOperator):
    """Aggregates rows. Their columns are known when the first of them come, or from what was restored."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._plan: AggregatePlan | None = None
        #: Whether the plan is that of a checkpoint, and no rows came since.
        self._is_restored = False

    def _bound(self, batch: Batch) -> AggregatePlan:
        """The plan for rows like these. Rows of other types than the state was made of are refused."""
        if self._plan is None:
            return self._bind(self._grouping.input_schema(batch.schema))
        if self._is_restored:
            self._grouping.check_types(self._plan, self._grouping.input_schema(batch.schema))
            self._is_restored = False
        return self._plan

    @abstractmethod
    def _bind(self, schema: Schema) -> AggregatePlan:
        """Make the plan for columns, and what the operator keeps by it."""
