"""init and fence: ids and epochs (internals: producers)."""

import pytest

from msgtx import errors
from msgtx.store.transactions.producers import fence_producer, init_producer_id, kept_sequences
from msgtx.store.transactions.transactions import Decision, transaction_outcome
from msgtx.types import Outcome, ProducerId
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.conftest import Blocked
from tests.store.steps import Writer, append_one, batch, count, ends, new_partition, note_sequence, seal, unique, values


def init(
    connection: Connection, transactional_id: str | None, expected: ProducerId | None = None, timeout_ms: int = 60_000
) -> ProducerId:
    return init_producer_id(connection, transactional_id, timeout_ms=timeout_ms, expected=expected)


def test_producers_without_a_transactional_id_get_new_ids_at_epoch_zero(connection: Connection) -> None:
    first, second = init(connection, None), init(connection, None)
    assert (first.epoch, second.epoch) == (0, 0)
    assert second.producer_id > first.producer_id


def test_a_plain_init_writes_to_the_wal_so_that_a_crash_cannot_hand_its_id_out_again(connection: Connection) -> None:
    """P41: a transaction id alone is not flushed, and the sequence writes one time in 32."""
    with connection.transaction():
        for _ in range(3):
            before = connection.execute("select pg_current_wal_insert_lsn()").fetchone()
            init(connection, None)
            written = "select pg_current_xact_id_if_assigned() is not null, pg_current_wal_insert_lsn() > %s::pg_lsn"
            assert connection.execute(written, before).fetchone() == (True, True)


def test_the_kept_sequences_are_those_of_the_log_and_of_what_retention_has_noted(connection: Connection) -> None:
    """A removed row is no loss; what nobody can know is no proof of one (decision 0176)."""
    producer = init(connection, None)
    logged, removed, empty = (new_partition(connection) for _ in range(3))
    append_one(connection, batch(logged, b"1", b"2", producer=producer, sequence=0))
    note_sequence(connection, removed, producer.producer_id, 6, offset=6)
    assert kept_sequences(connection, producer, [logged, removed, empty, 2**31 - 1]) == [1, 6, -1, None]
    assert kept_sequences(connection, ProducerId(producer.producer_id, 1), [logged]) == [-1]
    assert kept_sequences(connection, producer, []) == []


def test_a_known_id_keeps_its_producer_id_and_raises_its_epoch(connection: Connection) -> None:
    name = unique("id")
    first = init(connection, name)
    assert first.epoch == 0
    assert [init(connection, name) for _ in range(3)] == [(first.producer_id, epoch) for epoch in (1, 2, 3)]


@pytest.mark.parametrize("sealed", [False, True])
def test_init_aborts_what_the_predecessor_left_open_and_writes_its_markers(connection: Connection, sealed: bool) -> None:
    """I7, P9: nothing of the old epoch stays undecided, and the state is Empty at once."""
    partition, zombie = new_partition(connection), Writer(connection)
    zombie.send(partition, b"a")
    if sealed:
        seal(connection, zombie.name, "session")
    Writer(connection, zombie.transactional_id)
    assert transaction_outcome(connection, zombie.name) == Decision(Outcome.ABORTED, "fence")
    assert ends(connection, partition) == (0, 1, 1)
    assert count(connection, "transaction_marker", "producer_id = %s", zombie.id.producer_id) == 1
    assert zombie.state == "Empty"


def test_init_leaves_what_is_decided(connection: Connection, partition: int, writer: Writer) -> None:
    name = writer.send_and_commit(partition, b"a")
    Writer(connection, writer.transactional_id)
    assert transaction_outcome(connection, name) == Decision(Outcome.COMMITTED, "client")
    assert values(connection, partition) == [b"a"]


def test_numbers_and_sequences_start_again_in_a_new_epoch(connection: Connection, partition: int, writer: Writer) -> None:
    for _ in range(3):
        writer.send_and_commit(partition, b"a")
    writer.init()
    writer.send(partition, b"b")
    assert writer.commit().transaction_number == 0
    assert values(connection, partition) == [b"a", b"a", b"a", b"b"]


@pytest.mark.parametrize("name", ["a transactional id", None])
def test_a_running_producer_raises_its_own_epoch_and_a_retry_gets_the_same_answer(
    connection: Connection, name: str | None
) -> None:
    """A plain one gets a row by that."""
    first = init(connection, name)
    second = init(connection, name, first)
    assert second == (first.producer_id, 1)
    assert init(connection, name, first) == second
    assert init(connection, name, first) == second
    assert init(connection, name, second) == (first.producer_id, 2)
    with pytest.raises(errors.ProducerFenced):
        init(connection, name, first)


@pytest.mark.parametrize("by", ["init", "fence"])
def test_a_fenced_zombie_is_not_handed_its_successors_epoch(connection: Connection, by: str) -> None:
    """P30: an init without `expected` and a fence clear the remembered epoch."""
    name = unique("id")
    zombie = init(connection, name)
    bumped = init(connection, name, zombie)
    if by == "init":
        init(connection, name)
    else:
        fence_producer(connection, name)
    for stale in (zombie, bumped):
        with pytest.raises(errors.ProducerFenced):
            init(connection, name, stale)


def test_an_epoch_above_the_current_one_is_not_known(connection: Connection) -> None:
    name = unique("id")
    first = init(connection, name)
    with pytest.raises(errors.InvalidProducerIdMapping):
        init(connection, name, ProducerId(first.producer_id, 5))


def test_an_id_that_expired_is_not_known_to_its_old_producer(connection: Connection) -> None:
    name = unique("id")
    old = init(connection, name)
    connection.execute("delete from msgtx.producer where transactional_id = %s", [name])
    with pytest.raises(errors.InvalidProducerIdMapping):
        init(connection, name, old)
    fresh = init(connection, name)
    assert fresh.epoch == 0
    assert fresh.producer_id != old.producer_id
    with pytest.raises(errors.ProducerFenced):
        init(connection, name, old)


@pytest.mark.parametrize("timeout_ms", [0, -5, 900_001])
def test_a_timeout_out_of_range_is_refused_and_changes_nothing(connection: Connection, timeout_ms: int) -> None:
    name = unique("id")
    with refuses(errors.InvalidTransactionTimeout, given=timeout_ms):
        init(connection, name, timeout_ms=timeout_ms)
    assert count(connection, "producer", "transactional_id = %s", name) == 0


def test_the_largest_timeout_is_a_setting_of_the_installation(connection: Connection) -> None:
    init(connection, unique("id"), timeout_ms=900_000)
    connection.execute("update msgtx.setting set value = 1000 where name = 'transaction_max_timeout_ms'")
    try:
        with pytest.raises(errors.InvalidTransactionTimeout):
            init(connection, unique("id"), timeout_ms=1_001)
    finally:
        connection.execute("update msgtx.setting set value = 900000 where name = 'transaction_max_timeout_ms'")


@pytest.mark.parametrize("name", ["Ünï-çødé 🚀", "a'b\"c;--", "x" * 1_000, " "])
def test_ids_with_odd_characters_are_ordinary(connection: Connection, name: str) -> None:
    assert init(connection, name).producer_id == init(connection, name).producer_id


def test_a_fence_raises_the_epoch_and_aborts(connection: Connection, partition: int, writer: Writer) -> None:
    writer.send(partition, b"a")
    assert fence_producer(connection, writer.transactional_id) == (writer.id.producer_id, 1)
    assert transaction_outcome(connection, writer.name) == Decision(Outcome.ABORTED, "fence")
    with pytest.raises(errors.ProducerFenced):
        init(connection, writer.transactional_id, writer.id)


def test_a_fence_of_an_unknown_id_says_so(connection: Connection) -> None:
    with pytest.raises(errors.TransactionalIdNotFound):
        fence_producer(connection, "nobody")


def test_a_transactional_id_is_not_empty(connection: Connection) -> None:
    """Also by SQL."""
    with refuses(errors.InvalidRequest, name="a transactional id"):
        init_producer_id(connection, "", timeout_ms=60_000)
    with pytest.raises(Exception, match="a transactional id cannot be empty"):
        connection.execute("select * from msgtx.init_producer_id('', 60000)")


def test_an_id_that_expires_while_its_next_owner_waits_begins_anew(
    connection: Connection, writer: Writer, blocked: Blocked
) -> None:
    """I13: the sweep has removed it by the time the lock is free."""
    with connection.transaction():
        connection.execute("select msgtx.lock_producer(%s)", [writer.id.producer_id])
        connection.execute("delete from msgtx.producer where producer_id = %s", [writer.id.producer_id])
        found = blocked(init_producer_id, writer.transactional_id, timeout_ms=60_000)
    begun = found.result(30)
    assert begun.producer_id != writer.id.producer_id
    assert begun.epoch == 0
    assert count(connection, "producer", "transactional_id = %s", writer.transactional_id) == 1


def test_of_two_that_take_a_new_id_at_once_the_later_one_owns_it(connection: Connection, blocked: Blocked) -> None:
    """I7: it waits for the other one's COMMIT, and fences it; no third one is touched."""
    others = [Writer(connection) for _ in range(2)]
    name = unique("new")
    with connection.transaction():
        begun = init_producer_id(connection, name, timeout_ms=60_000)
        found = blocked(init_producer_id, name, timeout_ms=60_000)
    assert found.result(30) == ProducerId(begun.producer_id, 1)
    assert [init_producer_id(connection, each.transactional_id, timeout_ms=60_000) for each in others] == [
        ProducerId(each.id.producer_id, 1) for each in others
    ]
