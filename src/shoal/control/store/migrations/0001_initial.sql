-- What the control plane remembers. Runs on SQLite and on PostgreSQL alike: both know the types TEXT, BIGINT and BYTEA
-- (SQLite by affinity, and it keeps a blob as it is whatever the column says).
--
-- `version` is for compare-and-set. `format` numbers the form of `document`, which holds the fields without a column.

CREATE TABLE nodes (
    id TEXT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    state TEXT NOT NULL,
    -- Microseconds since 1970.
    last_beat BIGINT NOT NULL,
    format INTEGER NOT NULL,
    document TEXT NOT NULL
);

CREATE TABLE workloads (
    id TEXT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    node_id TEXT,
    group_id TEXT,
    desired TEXT NOT NULL,
    format INTEGER NOT NULL,
    document TEXT NOT NULL,
    -- The exact bytes that were accepted.
    spec BYTEA NOT NULL
);

CREATE TABLE groups (
    id TEXT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    desired TEXT NOT NULL,
    format INTEGER NOT NULL,
    document TEXT NOT NULL
);

-- The last report on each workload; a row here has one in workloads.
CREATE TABLE observations (
    workload_id TEXT NOT NULL PRIMARY KEY,
    node_id TEXT NOT NULL,
    state TEXT NOT NULL,
    format INTEGER NOT NULL,
    document TEXT NOT NULL
);

CREATE TABLE events (
    cursor BIGINT NOT NULL PRIMARY KEY,
    subject_kind TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    format INTEGER NOT NULL,
    document TEXT NOT NULL
);

CREATE INDEX events_by_subject ON events (subject_kind, subject_id, cursor);

-- Numbers of the store itself: the cursor that was given last, and a row to try writing on.
CREATE TABLE meta (
    name TEXT NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
);

INSERT INTO meta (name, value) VALUES ('event_cursor', 0);

-- The highest generation of any workload that was forgotten.
INSERT INTO meta (name, value) VALUES ('generation_floor', 0);

INSERT INTO meta (name, value) VALUES ('probe', 0);
