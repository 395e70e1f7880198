-- Jobs: named sets of workloads that one engine owns. `spec` and `progress` are the engine's own bytes.

CREATE TABLE jobs (
    id TEXT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    engine TEXT NOT NULL,
    state TEXT NOT NULL,
    format INTEGER NOT NULL,
    document TEXT NOT NULL,
    spec BYTEA NOT NULL,
    progress BYTEA NOT NULL
);
