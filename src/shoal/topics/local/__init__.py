"""The embedded log: a directory, many processes on one host, no server.

`LocalTopics(directory)` is a `shoal.topics.base.Topics`. How it works, from the bottom up:

    framing     records in a file that may be torn anywhere: pure
    entries     what stands in the journal: pure
    groups      who of a group reads what: pure
    replay      what a journal means: which entries count, and which offsets follow: pure
    snapshots   the same meaning written down, so that a journal may end: pure
    settings    how a process uses the log
    places      the directory: where files lie, how they appear whole, which file systems will do
    kernel      two calls of the operating system
    index       where the records of ended journals lie
    journal     the one file that everybody appends to
    segments    the files that hold the records; each belongs to one writer
    watch       hearing of a change
    leases      who is alive
    view        the journal as this process has read it, shared by its threads
    session     one life of this process in the log, kept by a lease
    drafts      what writers have put into segments
    upkeep      retention, collecting garbage, syncing
    writer, reader, member, topics    what the protocol asks for

**No lock is held across a write.** A writer puts records into a file of its own. They count when one entry, written
with one `O_APPEND` write, stands in the journal. Offsets are not written anywhere: they follow from the order of the
entries, and whether an entry counts follows from what stands before it. So all readers agree, and a writer that was
stopped, taken for dead and woken again writes an entry that is void for everyone; it learns so by reading on to it.
"""

from shoal.topics.local.settings import Fsync, LocalLogSettings
from shoal.topics.local.topics import LocalTopics

__all__ = ["Fsync", "LocalLogSettings", "LocalTopics"]
