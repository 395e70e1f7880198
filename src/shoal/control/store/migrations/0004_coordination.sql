-- The coordination tree: its nodes, its sessions, and the number of its last change. The control plane that leads holds
-- all of it in memory; a row is written for each change. `owner` is the session of an ephemeral node, otherwise empty.

CREATE TABLE coordination_nodes (
    path TEXT NOT NULL PRIMARY KEY,
    data BYTEA NOT NULL,
    version BIGINT NOT NULL,
    owner TEXT NOT NULL,
    created BIGINT NOT NULL,
    modified BIGINT NOT NULL,
    -- The number that its next sequential child gets.
    sequence BIGINT NOT NULL
);

CREATE TABLE coordination_sessions (
    id TEXT NOT NULL PRIMARY KEY,
    timeout_ms BIGINT NOT NULL,
    -- Who opened it, as its certificate says.
    holder TEXT NOT NULL
);

INSERT INTO meta (name, value) VALUES ('coordination_order', 0);
