from shoal.discovery.client import LeaderChannel as LeaderChannel
from shoal.discovery.client import ServingAgentClient as ServingAgentClient
from shoal.discovery.embedded import EmbeddedTree as EmbeddedTree
from shoal.discovery.mirror.records import AgentResource as AgentResource
from shoal.discovery.remote import RemoteStore as RemoteStore
from shoal.discovery.replicas.records import ModelState as ModelState
from shoal.discovery.replicas.records import ServerType as ServerType
from shoal.discovery.services import Endpoint as Endpoint
from shoal.discovery.services import follow as follow
from shoal.discovery.services import resolve as resolve
from shoal.discovery.zookeeper import ZookeeperSettings as ZookeeperSettings
from shoal.discovery.zookeeper import ZookeeperStore as ZookeeperStore

__all__: list[str]
