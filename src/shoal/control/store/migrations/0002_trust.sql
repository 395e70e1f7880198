-- Who leads, when several control planes share one database. One row; `expires_at` is in milliseconds since 1970 by the
-- database's own clock. `term` grows with each change of leader and is checked by every transaction that writes.

CREATE TABLE leadership (
    name TEXT NOT NULL PRIMARY KEY,
    term BIGINT NOT NULL,
    holder TEXT NOT NULL,
    address TEXT NOT NULL,
    expires_at BIGINT NOT NULL
);

INSERT INTO leadership (name, term, holder, address, expires_at) VALUES ('control', 0, '', '', 0);

-- Join tokens, of whose secrets only hashes are kept, and secrets, which are encrypted before they come here.

CREATE TABLE join_tokens (
    id TEXT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    format INTEGER NOT NULL,
    document TEXT NOT NULL
);

CREATE TABLE secrets (
    id TEXT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    format INTEGER NOT NULL,
    document TEXT NOT NULL,
    sealed BYTEA NOT NULL
);
