-- Revoked certificates, one row per node. A row is removed when the last certificate that it covers has expired.

CREATE TABLE revocations (
    id TEXT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    format INTEGER NOT NULL,
    document TEXT NOT NULL
);
