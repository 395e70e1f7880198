"""What every `shoal.tables.memory.Memory` does. Subclass `MemorySuite` and define the fixture `memory`."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.errors import ExhaustedError
from shoal.tables.memory import Memory


class MemorySuite:
    """The conformance suite of table memory."""

    @pytest.mark.parametrize("lasting", [False, True])
    @pytest.mark.parametrize("size", [8, 4096, 100_001, 3 << 21])
    def test_memory_is_zeroed_aligned_and_writable(self, memory: Memory, size: int, lasting: bool) -> None:
        found = memory.allocate("a", size, lasting=lasting)
        assert found.nbytes == size
        assert found.ctypes.data % 64 == 0
        assert not found.any()
        found[:] = 7
        assert (found == 7).all()

    def test_pieces_do_not_overlap(self, memory: Memory) -> None:
        pieces = [memory.allocate(f"piece-{number}", 1000, lasting=number % 2 == 0) for number in range(20)]
        for number, piece in enumerate(pieces):
            piece[:] = number
        assert [set(piece.tolist()) for piece in pieces] == [{number} for number in range(20)]

    def test_memory_outlives_free_and_close(self, memory: Memory) -> None:
        found = memory.allocate("a", 1 << 16)
        found[:] = 3
        memory.free("a")
        memory.close()
        assert (found == 3).all()
        found[0] = 4

    def test_a_name_is_free_again_after_free(self, memory: Memory) -> None:
        memory.allocate("a", 100)[:] = 1
        memory.free("a")
        memory.free("a")
        assert not memory.allocate("a", 100).any()

    def test_more_than_there_is_raises(self, memory: Memory) -> None:
        with pytest.raises(ExhaustedError):
            memory.allocate("a", 1 << 60)
        assert memory.allocate("b", 64).dtype == np.uint8
