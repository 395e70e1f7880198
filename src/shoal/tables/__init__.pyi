from shoal.tables.memory import HeapMemory as HeapMemory
from shoal.tables.memory import Memory as Memory
from shoal.tables.memory import SharedMemory as SharedMemory
from shoal.tables.settings.table import AdmissionSettings as AdmissionSettings
from shoal.tables.settings.table import ExpirySettings as ExpirySettings
from shoal.tables.settings.table import FilterKind as FilterKind
from shoal.tables.settings.table import NotFinite as NotFinite
from shoal.tables.settings.table import SliceSettings as SliceSettings
from shoal.tables.settings.table import TableKind as TableKind
from shoal.tables.settings.table import TableSettings as TableSettings
from shoal.tables.shared import SharedTableReader as SharedTableReader
from shoal.tables.table import EmbeddingTable as EmbeddingTable
from shoal.tables.table import Entries as Entries
from shoal.tables.table import TableStatistics as TableStatistics
from shoal.tables.table import TimeBasis as TimeBasis

__all__: list[str]
