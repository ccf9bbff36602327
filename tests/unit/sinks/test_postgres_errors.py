"""What the `postgres` sink makes of each class of SQLSTATE (PostgreSQL manual, appendix A)."""

from __future__ import annotations

import psycopg
import pytest

from connector import AuthenticationError, ConfigError, ConnectorError, FatalError, PoisonError, TransientError
from sinks.postgres import PostgresSettings, PostgresSink
from tests.unit.sinks.sink_batches import CONTEXT


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        # connection, rollback, resources (disk full, too many connections), operator (shutdown, starting), system,
        # lock timeout, read-only, idle in transaction
        ("08000 08006 40001 40P01 53100 53300 57014 57P01 57P02 57P03 57P05 58030 55P03 25006 25P03", TransientError),
        ("22001 22003 22P02 22P05 22021 23502 23505 23514 54000 P0001 44000", PoisonError),  # data, constraint, limit
        ("28000 28P01 42501", AuthenticationError),  # user, password, right
        ("3D000 42P01 42804 XX000", FatalError),  # database, table, type, anything else
        ("42P10", ConfigError),  # no such key
    ],
)
def test_the_sqlstate_decides_what_happens_next(states: str, expected: type[ConnectorError]) -> None:
    sink = PostgresSink(PostgresSettings.model_validate({"dsn": "host=x"}), CONTEXT)
    for state in states.split():
        error = psycopg.errors.lookup(state)("the server's words")
        classified = sink._classify(error, "orders[3]@10")
        assert type(classified) is expected, state
        assert f"orders[3]@10: PostgreSQL: the server's words (SQLSTATE {state})" in str(classified)


def test_an_error_of_the_client_library_about_a_value_is_poison() -> None:
    sink = PostgresSink(PostgresSettings.model_validate({"dsn": "host=x"}), CONTEXT)
    assert type(sink._classify(psycopg.DataError("cannot dump"), "orders[3]@10")) is PoisonError
