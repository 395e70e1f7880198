"""The private PostgreSQL of the tests is what it promises to be."""

from __future__ import annotations

import psycopg
import pytest

from tests.services.postgres import PACKAGE, PostgresServer, do_without

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_an_empty_database(postgres_url: str, turn: int) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        connection.execute("CREATE TABLE seen (turn int)")
        connection.execute("INSERT INTO seen VALUES (%s)", (turn,))


def test_what_is_acknowledged_is_on_the_disk(postgres_server: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert connection.execute(f"SHOW {setting}").fetchone() == ("on",)
        if postgres_server.data_dir is not None:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_server_is_skipped_at_a_desk_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=f"apt-get install {PACKAGE}"):
        do_without()
