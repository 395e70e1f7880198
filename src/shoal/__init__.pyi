from shoal.core.errors import ShoalError as ShoalError
from shoal.dataflow.api.apps.app import App as App
from shoal.dataflow.api.apps.app import Dataflow as Dataflow
from shoal.dataflow.api.apps.topic import Topic as Topic
from shoal.dataflow.api.own_operator import Operator as Operator
from shoal.dataflow.api.process_function import FunctionContext as FunctionContext
from shoal.dataflow.api.process_function import ProcessFunction as ProcessFunction
from shoal.dataflow.api.streams import fn as fn
from shoal.dataflow.api.streams.stream import Stream as Stream
from shoal.dataflow.api.streams.windows import count as count
from shoal.dataflow.api.streams.windows import session as session
from shoal.dataflow.api.streams.windows import sliding as sliding
from shoal.dataflow.api.streams.windows import tumbling as tumbling
from shoal.dataflow.errors import PlanError as PlanError
from shoal.dataflow.language.expressions.trees import col as col
from shoal.dataflow.language.expressions.trees import lit as lit
from shoal.dataflow.operators.record import Record as Record
from shoal.dataflow.settings import CheckpointSettings as CheckpointSettings
from shoal.dataflow.settings import FlowSettings as FlowSettings
from shoal.dataflow.state.groups import KeyedState as KeyedState
from shoal.dataflow.state.handles import AggregatingState as AggregatingState
from shoal.dataflow.state.handles import ListState as ListState
from shoal.dataflow.state.handles import MapState as MapState
from shoal.dataflow.state.handles import ReducingState as ReducingState
from shoal.dataflow.state.handles import ValueState as ValueState

__version__: str
__all__: list[str]
