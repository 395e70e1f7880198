"""A long life of a table: ids come, are updated and expire, over and over. It stays as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.tables.settings.optimizers import Sgd
from shoal.tables.settings.table import ExpirySettings, SliceSettings, TableSettings
from shoal.tables.table import EmbeddingTable
from tests.integration.tables.test_shared import torture

pytestmark = pytest.mark.timeout(1500)


def test_probes_and_memory_stay_flat_over_many_generations_of_ids() -> None:
    table = EmbeddingTable(
        TableSettings((SliceSettings(4, optimizer=Sgd()),), shards=4, expiry=ExpirySettings(10)), threads=2
    )
    generator = np.random.default_rng(0)
    batch, alive = 20_000, 10
    gradients = np.zeros((batch, 4), np.float32)
    probes, sizes = [], []
    for second in range(1500):
        table.apply(generator.integers(-(2**63), 2**63 - 1, batch), gradients, event_times=second)
        while len(table) > batch * (alive + 1):
            table.expire_some(1 << 14)
        if second % 100 == 50:
            table.expire()
            probes.append(table.probe_lengths())
            sizes.append(table.statistics().bytes)
    statistics = table.statistics()
    assert statistics.inserted == 1500 * batch
    assert statistics.removed == statistics.inserted - len(table)
    assert len(set(sizes[3:])) == 1  # a shard may still need one more block at first
    longest, means = [each[0] for each in probes], [each[1] for each in probes]
    assert max(means) < 1.1 * min(means)
    assert max(longest) < 4 * min(longest)


@pytest.mark.parametrize(("width", "count"), [(48, 20_000), (2048, 40)])
def test_a_long_torture_of_readers(tmp_path: Path, width: int, count: int) -> None:
    torture(tmp_path / "t", 5000, width=width, count=count, patience=1000)
