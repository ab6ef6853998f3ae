"""What a client does for its transactions behind their commits (internals: transactions#markers)."""

import time
from collections.abc import Callable

import msgtx
from msgtx.coordinator.completion import MARK_SECONDS
from msgtx.store.transactions import mark
from tests.databases import Connection, wait_until
from tests.store.steps import Writer, count, new_partition


def test_what_a_client_left_to_another_one_it_marks_in_the_next_round(
    client: msgtx.Client, topic: str, connection: Connection, unique: Callable[[str], str]
) -> None:
    """The other one has looked before the last commit, and looks no more."""
    other, elsewhere = Writer(connection), new_partition(connection)
    with client.producer(transactional_id=unique("producer")) as producer:
        with producer.transaction():
            producer.send(topic, b"first")
        due = time.monotonic() + MARK_SECONDS
        while time.monotonic() < due - 0.2:
            other.commit_whole(other.row(elsewhere, b"of the other one"))
            mark(connection)
        with producer.transaction():
            producer.send(topic, b"last")
        last = connection.execute(
            "select p.producer_id from msgtx.producer p where p.transactional_id = %s", [producer.config.transactional_id]
        ).fetchone()
        assert last is not None
        wait_until(lambda: count(connection, "transaction_marker", "producer_id = %s", last[0]) == 2)
