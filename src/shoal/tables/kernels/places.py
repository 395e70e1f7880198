"""Where things stand in the memory of a table: the numbers that kernels and `shoal.tables` share.

A table has shards. A shard has a header of words, an index and blocks of rows:

    index    capacity × 16 bytes: the id; then the time of the last update (high half) and the row + 1 (low half), 0 for
             an empty place. Linear probing; the ids are stored and compared, so no two ids ever share a row.
    blocks   rows of `stride` bytes: the weights of every slice, then the optimizer state of every slice. Rows never
             move; an index that grows is written anew, and blocks are added.
    filter   counts of ids that are not admitted yet.

Other threads and processes read while one writer writes. `STRIPES` sequence counters per shard guard the rows, each of
them many rows: odd while a row is written. `MOVES` is odd while an id is removed, because removal moves other ids.
Inserting needs neither: the id is stored before the word that makes its place count.
"""

from __future__ import annotations

# Words of a shard's header.
COUNT, NEXT_ROW, FREE_HEAD, FREE_COUNT, MOVES, GENERATION, BLOCKS, CAPACITY = range(8)
INSERTED, REMOVED, NOT_ADMITTED, NO_ROOM, FIELDS = range(8, 13)
STRIPE_START = 16
STRIPES = 1024
HEADER_WORDS = STRIPE_START + STRIPES

# Columns of the directory, one line per shard: addresses as this process sees them.
D_HEADER, D_INDEX, D_CAPACITY, D_BLOCKS, D_BLOCK_COUNT, D_GENERATION, D_FILTER = range(7)
DIRECTORY_COLUMNS = 8

# What is the same for the whole table.
G_SHARD_MASK, G_STRIDE, G_BLOCK_SHIFT, G_WIDTH, G_STATE, G_PLAIN, G_SEED, G_LIMIT = range(8)
GEOMETRY_FIELDS = 8

# Columns of the plan, one line per slice. Offsets of weights and states count floats, those of codes count bytes.
P_DIM, P_WEIGHTS, P_STATE, P_OPTIMIZER, P_INITIALIZER, P_CODEC, P_BYTES = range(7)
PLAN_COLUMNS = 8

# Columns of the parameters, one line per slice.
F_OPTIMIZER, F_INITIALIZER, F_CODEC = 0, 8, 12
PARAMETER_COLUMNS = 16

SLOT_BYTES = 16
#: Ids of one block are looked for together: their places are asked for before the first of them is read.
BATCH = 64
#: An index with more ids than this in 16 places grows soon: one shard after each batch, so that batches wait for one.
LOAD = 11
#: With this many it grows at once.
MAX_LOAD = 13

# The header of a shard's filter.
F_HEAD, F_USED, F_ROTATIONS = range(3)
FILTER_WORDS = 8
