"""What follows a failover: every producer is fenced, what is prepared stays (internals: operations#after-a-failover)."""

import pytest

from msgtx.errors import InvalidProducerEpoch
from msgtx.store.groups.members import describe_members
from msgtx.store.operator.installation import FENCE_PLAIN, fence_everybody, remove_all_members
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.seal import complete_prepared, seal
from msgtx.store.transactions.transactions import transaction_outcome
from msgtx.types import Outcome, ProducerId
from tests.databases import Connection, Sessions
from tests.store.roster import join
from tests.store.steps import Writer, append_one, batch, count, new_topic, note_sequence, plain, swept_by

pytestmark = pytest.mark.usefixtures("bare")


def idempotent(connection: Connection) -> ProducerId:
    return init_producer_id(connection, None, timeout_ms=60_000)


def sent(connection: Connection, partition: int, producer: ProducerId, sequence: int = 0) -> object:
    return type(append_one(connection, batch(partition, b"a", producer=producer, sequence=sequence)).error)


def test_every_plain_producer_of_the_log_is_fenced_once(connection: Connection) -> None:
    """I7: in whichever partition it has written, beside rows of nobody, and also if retention has removed its rows."""
    first, second, third, last = new_topic(connection, 4)
    for partition in (first, last):
        plain(connection, partition, b"of nobody")
    producers = [idempotent(connection) for _ in range(4)]
    for producer, partitions in zip(producers, ([second], [second, third], [third], []), strict=True):
        for partition in partitions:
            assert sent(connection, partition, producer) is type(None)
    plain(connection, third, b"of nobody")
    note_sequence(connection, first, producers[3].producer_id, 0)
    assert fence_everybody(connection, plain=True) == 4
    assert count(connection, "producer", "epoch = 1") == count(connection, "producer") == 4
    for producer in producers:
        assert sent(connection, second, producer, 1) is InvalidProducerEpoch
    assert fence_everybody(connection, plain=True) == 0


def test_a_locked_group_keeps_its_members_and_stops_nothing(connection: Connection, open_connection: Sessions) -> None:
    """They go when their sessions are over."""
    connection.execute("alter function msgtx.remove_all_members set lock_timeout = '100ms'")
    for group in ("a", "b", "c"):
        join(connection, group, "member")
    holder = open_connection()
    try:
        with holder.transaction():
            holder.execute("select msgtx.lock_group('b')")
            assert remove_all_members(connection) == 2
        assert [len(describe_members(connection, group).members) for group in ("a", "b", "c")] == [0, 1, 0]
        assert remove_all_members(connection) == 1
    finally:
        connection.execute("alter function msgtx.remove_all_members set lock_timeout = '10s'")


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_a_call_looks_at_so_many_and_the_next_one_goes_on(connection: Connection, most: int) -> None:
    partitions = new_topic(connection, 2)
    producers = [idempotent(connection) for _ in range(3)]
    for partition in partitions:
        for producer in producers:
            sent(connection, partition, producer)
    for name, fenced in (("fence_plain_producers", 3), ("fence_everybody", 3)):
        found = swept_by(connection, name, most)
        places = 6 if name == FENCE_PLAIN.name else 3
        assert (sum(found), len(found), max(found) <= most) == (fenced, places // most + 1, True)
    assert count(connection, "producer", "epoch = 2") == 3


def test_what_is_prepared_stays_and_all_else_that_is_open_is_aborted(connection: Connection, partition: int) -> None:
    """I7: also where others were decided under the same number and epoch, and their seals are still there."""
    prepared, decided, sealed, open_one = (Writer(connection) for _ in range(4))
    for writer in (prepared, decided):
        for outcome in ("COMMIT", "ABORT"):
            writer.send(partition, b"before")
            assert seal(connection, writer.name, "external", tails=writer.tails).error is None
            complete_prepared(connection, writer.name, outcome)
            writer.next()
        writer.init()
    for writer in (prepared, decided, sealed, open_one):
        writer.send(partition, b"a")
    for writer, kind in ((prepared, "external"), (decided, "external"), (sealed, "session")):
        assert seal(connection, writer.name, kind, tails=writer.tails).error is None
    complete_prepared(connection, decided.name, "COMMIT")
    decided.next()
    decided.send(partition, b"open, behind a seal that is decided")
    before = {writer: writer.id.epoch for writer in (prepared, decided, sealed, open_one)}
    assert fence_everybody(connection, plain=False) == 4
    outcomes = [transaction_outcome(connection, writer.name).outcome for writer in before]
    assert outcomes == [Outcome.OPEN, Outcome.ABORTED, Outcome.ABORTED, Outcome.ABORTED]
    for writer, epoch in before.items():
        assert count(connection, "producer", "producer_id = %s and epoch = %s", writer.id.producer_id, epoch + 1) == 1
    complete_prepared(connection, prepared.name, "COMMIT")
