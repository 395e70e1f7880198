from shoal.topics.base import Member as Member
from shoal.topics.base import Reader as Reader
from shoal.topics.base import Reset as Reset
from shoal.topics.base import Retention as Retention
from shoal.topics.base import TopicPartition as TopicPartition
from shoal.topics.base import Topics as Topics
from shoal.topics.base import Writer as Writer
from shoal.topics.base import ensure_topic as ensure_topic
from shoal.topics.base import records as records
from shoal.topics.base import start_offsets as start_offsets
from shoal.topics.codecs import codec as codec
from shoal.topics.errors import FencedError as FencedError
from shoal.topics.errors import LogFullError as LogFullError
from shoal.topics.errors import OffsetOutOfRangeError as OffsetOutOfRangeError
from shoal.topics.errors import RebalancedError as RebalancedError
from shoal.topics.kafka import KafkaSettings as KafkaSettings
from shoal.topics.kafka import KafkaTopics as KafkaTopics
from shoal.topics.local import Fsync as Fsync
from shoal.topics.local import LocalLogSettings as LocalLogSettings
from shoal.topics.local import LocalTopics as LocalTopics

__all__: list[str]
