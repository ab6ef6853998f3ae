"""What is done to a transaction by its name is done to no other one, as near as that may be (architecture: promises)."""

import itertools
from typing import Final

import pytest

from msgtx.types import TransactionId
from tests.databases import Connection
from tests.store.steps import Writer, expire_transaction, seal

PARTITION: Final = 1_000_001  # no records are there
NAMED: Final = (
    "transaction",
    "transaction_partition",
    "transaction_seal",
    "transaction_decision",
    "transaction_marker",
    "group_offset",
)
Name = tuple[int, int, int]
_number = itertools.count(1_000_000)


def write(connection: Connection, name: Name, outcome: str) -> None:
    """Write every row that a transaction may have."""
    place = [[PARTITION], [3], [4]]
    for statement, more in (
        ("transaction values (%s, %s, %s, now(), 1, null, null, 1)", []),
        ("transaction_partition values (%s, %s, %s, %s, 3)", [PARTITION]),
        (
            "transaction_seal (producer_id, producer_epoch, transaction_number, kind, sealed_at, partitions, first_offsets,"
            " last_offsets) values (%s, %s, %s, 'session', now(), %s, %s, %s)",
            place,
        ),
        (
            "transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at, decided_by,"
            " partitions, first_offsets, last_offsets) values (%s, %s, %s, %s, now(), 'producer', %s, %s, %s)",
            [outcome, *place],
        ),
        (
            "transaction_marker (producer_id, producer_epoch, transaction_number, partition_id, outcome, first_offset,"
            " last_offset) values (%s, %s, %s, %s, %s, 3, 4)",
            [PARTITION, outcome],
        ),
        (
            "group_offset (producer_id, producer_epoch, transaction_number, group_id, partition_id, commit_sequence,"
            " committed_offset, committed_at) values (%s, %s, %s, 1, %s, %s, 4, now())",
            [PARTITION, next(_number)],
        ),
    ):
        connection.execute(f"insert into msgtx.{statement}".encode(), [*name, *more])


def left(connection: Connection, table: str, names: list[Name]) -> set[Name]:
    """Return which of these have rows in a table."""
    rows = connection.execute(f"select producer_id, producer_epoch, transaction_number from msgtx.{table}".encode())
    return set(rows) & set(names)


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_all_of_a_transaction_is_forgotten_and_nothing_of_its_neighbours(connection: Connection, outcome: str) -> None:
    """Each neighbour differs in one part of the name: from another producer, of another epoch, another transaction."""
    producer = next(_number)
    forgotten: Name = (producer, 5, 7)
    neighbours: list[Name] = [(producer + 500_000, 5, 7), (producer, 6, 7), (producer, 5, 8)]
    for name in (forgotten, *neighbours):
        write(connection, name, outcome)
    found = connection.execute(
        "select msgtx.forget_transactions(array(select d from msgtx.transaction_decision d"
        " where (producer_id, producer_epoch, transaction_number) = (%s, %s, %s)))",
        forgotten,
    ).fetchall()
    assert found == [(1,)]
    for table in NAMED:
        stays = {forgotten} if (table, outcome) == ("group_offset", "COMMIT") else set()
        assert left(connection, table, [forgotten, *neighbours]) == {*neighbours, *stays}, table


def test_a_transaction_expires_by_its_own_row_and_its_own_seal(connection: Connection) -> None:
    """I12. That of another producer, of an earlier epoch, or of this producer before is overdue, and then is prepared."""
    producers = Writer(connection), Writer(connection)
    for each in producers:
        each.init()  # an earlier epoch than its second one is needed
    (producer, epoch), (neighbour, same) = [each.id for each in producers]
    assert epoch == same == 1
    name = TransactionId(producer, epoch, 7)
    neighbours = [
        TransactionId(neighbour, epoch, 7),
        TransactionId(producer, epoch - 1, 7),
        TransactionId(producer, epoch, 6),
    ]
    for other in (name, *neighbours):
        connection.execute(
            "insert into msgtx.transaction (producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,"
            " database_backend) values (%s, %s, %s, msgtx.clock() - %s * interval '1 hour', 60000, pg_backend_pid())",
            [*other, 0 if other == name else 1],
        )
    assert not expire_transaction(connection, name)
    for other in neighbours:
        seal(connection, other, "external")
    assert not expire_transaction(connection, name)
    connection.execute(
        "update msgtx.transaction set opened_at = opened_at - interval '1 hour'"
        " where (producer_id, producer_epoch, transaction_number) = (%s, %s, %s)",
        name,
    )
    assert expire_transaction(connection, name)
