from shoal.discovery.client import ServingAgentClient as ServingAgentClient
from shoal.discovery.embedded import EmbeddedTree as EmbeddedTree
from shoal.discovery.mirror.records import AgentResource as AgentResource
from shoal.discovery.replicas.records import ModelState as ModelState
from shoal.discovery.replicas.records import ServerType as ServerType
from shoal.discovery.zookeeper import ZookeeperSettings as ZookeeperSettings
from shoal.discovery.zookeeper import ZookeeperStore as ZookeeperStore

__all__: list[str]
