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
