"""A batch as a job that several threads do together without the interpreter: each takes a part.

A job is words: its kind, addresses and sizes of its arrays. The caller's thread is the leader: it posts the job and
does part 0. Then it takes the parts that no thread has begun, because those wait for a processor, and waits for the
others. The threads beside it take their parts and wait for the next job, first in a short loop, because a thread that
sleeps is often woken on the processor of the leader, where it can only wait again.
Called by `shoal.tables.workers`; `shoal.tables.jobs` writes the words.
"""

from __future__ import annotations

from typing import Any

from numba import types

from shoal.tables.kernels.access import (
    bytes_at,
    claim_word,
    floats_at,
    floats_in_rows,
    load_word,
    pause,
    store_word,
    words_at,
    words_in_rows,
)
from shoal.tables.kernels.compiling import helper, kernel
from shoal.tables.kernels.lookups import read_rows
from shoal.tables.kernels.places import DIRECTORY_COLUMNS, GEOMETRY_FIELDS, PARAMETER_COLUMNS, PLAN_COLUMNS
from shoal.tables.kernels.updates import apply_gradients, assign_rows, drop_not_finite, select, sum_gradients

LOOKUP, SUM, APPLY, ASSIGN = range(4)

# Words of every job.
J_KIND, J_PARTS, J_RESULTS, J_DIRECTORY, J_SHARDS, J_GEOMETRY, J_PLAN, J_SLICES, J_PARAMETERS = range(9)
J_IDS, J_COUNT, J_VALUES, J_WIDTH = range(9, 13)
# Of those that write.
J_TIMES, J_STATES, J_STATE_ROWS, J_STATE_WIDTH = range(13, 17)
# Of gradients: one job adds them up, then the same one applies the sums.
J_THRESHOLDS, J_SLOTS, J_ADMISSION, J_ADMISSION_WORDS, J_RATES, J_STEP, J_FLAGS, J_BUFFERS = range(17, 25)
JOB_WORDS = 25

# Words of a part's results: where it stopped, of how many; how many are not finite; the shard that lacks room.
R_AT, R_FOUND, R_BROKEN, R_STOPPED = range(4)
RESULT_WORDS = 8

# Addresses of a part's buffers, and how many ids they take.
B_ORDER, B_POSITIONS, B_SCRATCH, B_IDS, B_COUNTS, B_TIMES, B_SUMS, B_SIZE = range(8)
BUFFER_WORDS = 8

# Words of the mailbox, in cache lines of their own: the number and address of the job, then a line for each part with
# the number of the last job in which it was taken, and of the last one in which another thread has done it.
M_POSTED, M_JOB, M_PARTS = 0, 8, 16
M_TAKEN, M_DONE = 0, 1
LINE_WORDS = 8

#: Turns of a loop that waits for a job, about half a millisecond. The caller's own code between two calls takes less.
SPINS = 20000
#: Those of the leader: a thread that has begun its part and does not end it may need the leader's processor.
_LEADER_SPINS = 2000
_NAP = 20

_usleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))


@helper
def _wait(address: int, wanted: int) -> None:
    """Wait until another thread has written a number: some turns of a loop, then in naps."""
    turns = 0
    while load_word(address) != wanted:
        turns += 1
        if turns < _LEADER_SPINS:
            pause()
        else:
            _usleep(_NAP)


@helper
def _look_up(job: Any, part: int, result: Any) -> None:
    count, parts, width = job[J_COUNT], job[J_PARTS], job[J_WIDTH]
    begin, end = count * part // parts, count * (part + 1) // parts
    result[R_FOUND] = read_rows(
        words_in_rows(job[J_DIRECTORY], job[J_SHARDS], DIRECTORY_COLUMNS),
        words_at(job[J_GEOMETRY], GEOMETRY_FIELDS),
        words_in_rows(job[J_PLAN], job[J_SLICES], PLAN_COLUMNS),
        floats_in_rows(job[J_PARAMETERS], job[J_SLICES], PARAMETER_COLUMNS),
        words_at(job[J_IDS] + begin * 8, end - begin),
        floats_in_rows(job[J_VALUES] + begin * width * 4, end - begin, width),
    )


@helper
def _sum(job: Any, part: int, result: Any, buffers: Any) -> None:
    """Add up the gradients of a part's ids."""
    count, size, width, shards = job[J_COUNT], buffers[B_SIZE], job[J_WIDTH], job[J_SHARDS]
    ids = words_at(job[J_IDS], count)
    positions = words_at(buffers[B_ORDER], count)
    if job[J_PARTS] > 1:
        chosen = select(ids, bytes_at(job[J_FLAGS] + part * shards, shards), words_at(buffers[B_POSITIONS], size))
        positions = words_at(buffers[B_POSITIONS], chosen)
    sums, counts = floats_in_rows(buffers[B_SUMS], size, width), words_at(buffers[B_COUNTS], size)
    found = sum_gradients(
        ids,
        floats_in_rows(job[J_VALUES], count, width),
        words_at(job[J_TIMES], count),
        positions,
        words_at(buffers[B_SCRATCH], size * 2 + 1),
        words_at(buffers[B_IDS], size),
        counts,
        sums,
        words_at(buffers[B_TIMES], size),
    )
    result[R_FOUND] = found
    result[R_BROKEN] = drop_not_finite(sums, found, counts)


@helper
def _apply(job: Any, result: Any, buffers: Any) -> None:
    found = result[R_FOUND]
    result[R_AT] = apply_gradients(
        words_in_rows(job[J_DIRECTORY], job[J_SHARDS], DIRECTORY_COLUMNS),
        words_at(job[J_GEOMETRY], GEOMETRY_FIELDS),
        words_in_rows(job[J_PLAN], job[J_SLICES], PLAN_COLUMNS),
        floats_in_rows(job[J_PARAMETERS], job[J_SLICES], PARAMETER_COLUMNS),
        words_at(job[J_THRESHOLDS], job[J_SLOTS]),
        words_at(job[J_ADMISSION], job[J_ADMISSION_WORDS]),
        words_at(buffers[B_IDS], found),
        words_at(buffers[B_COUNTS], found),
        words_at(buffers[B_TIMES], found),
        floats_in_rows(buffers[B_SUMS], found, job[J_WIDTH]),
        floats_at(job[J_RATES], job[J_SLICES]),
        job[J_STEP],
        result[R_AT],
        result[R_STOPPED:],
    )


@helper
def _assign(job: Any, part: int, result: Any) -> None:
    count = job[J_COUNT]
    result[R_FOUND] = count
    result[R_AT] = assign_rows(
        words_in_rows(job[J_DIRECTORY], job[J_SHARDS], DIRECTORY_COLUMNS),
        words_at(job[J_GEOMETRY], GEOMETRY_FIELDS),
        words_in_rows(job[J_PLAN], job[J_SLICES], PLAN_COLUMNS),
        floats_in_rows(job[J_PARAMETERS], job[J_SLICES], PARAMETER_COLUMNS),
        words_at(job[J_IDS], count),
        words_at(job[J_TIMES], count),
        floats_in_rows(job[J_VALUES], count, job[J_WIDTH]),
        floats_in_rows(job[J_STATES], job[J_STATE_ROWS], job[J_STATE_WIDTH]),
        part,
        job[J_PARTS],
        result[R_AT],
        result[R_STOPPED:],
    )


@helper
def _do(address: int, part: int) -> None:
    """Do one part of a job."""
    job = words_at(address, JOB_WORDS)
    result = words_at(job[J_RESULTS] + part * RESULT_WORDS * 8, RESULT_WORDS)
    buffers = words_at(job[J_BUFFERS] + part * BUFFER_WORDS * 8, BUFFER_WORDS)
    if job[J_KIND] == LOOKUP:
        _look_up(job, part, result)
    elif job[J_KIND] == SUM:
        _sum(job, part, result, buffers)
    elif job[J_KIND] == APPLY:
        _apply(job, result, buffers)
    else:
        _assign(job, part, result)


@kernel("int64(int64[::1], int64[::1], int64, int64)")
def take_part(mailbox: Any, job: Any, number: int, role: int) -> int:
    """As the leader (role 0): post a job, do part 0 and those that nobody takes, wait for the others.

    As another (its role is its part): do the jobs after `number`, until none has come for a while. Returns the number
    of the last job that was seen. A job is touched only by those who took a part of it: the leader waits for them.
    """
    first = mailbox.ctypes.data
    posted, parts = first + M_POSTED * 8, first + M_PARTS * 8
    if role == 0:
        if job[J_PARTS] > 1:
            store_word(first + M_JOB * 8, job.ctypes.data)
            store_word(posted, number)
        _do(job.ctypes.data, 0)
        for part in range(1, job[J_PARTS]):
            line = parts + part * LINE_WORDS * 8
            if claim_word(line + M_TAKEN * 8, number - 1, number):
                _do(job.ctypes.data, part)
            else:
                _wait(line + M_DONE * 8, number)
        return number
    seen = number
    line = parts + role * LINE_WORDS * 8
    turns = 0
    while turns < SPINS:
        if load_word(posted) != seen:
            seen = load_word(posted)
            if claim_word(line + M_TAKEN * 8, seen - 1, seen):
                _do(load_word(first + M_JOB * 8), role)
                store_word(line + M_DONE * 8, seen)
            turns = 0
        turns += 1
        pause()
    return seen
