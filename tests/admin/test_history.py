"""`client.admin.producers.history`: the epochs of a producer, their transactions, and who fenced whom."""

import json

import pytest

import msgtx
from msgtx import TopicPartition, errors
from msgtx.store.transactions.producers import fence_producer, init_producer_id
from msgtx.types import ProducerHistory
from tests.admin.conftest import Realm
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.steps import Writer, forget, named_topic, unique

SECONDS = 30.0


def counts(found: ProducerHistory) -> list[tuple[int, int | None, int | None, int, int]]:
    """Return of each epoch: its number, its first and last transaction, how many are committed and aborted."""
    return [(each.epoch, each.first_number, each.last_number, each.committed, each.aborted) for each in found.epochs]


def test_the_epochs_of_a_producer_are_told_with_their_transactions(client: msgtx.Client, connection: Connection) -> None:
    topic, (first, second) = named_topic(connection, 2)
    writer, other = Writer(connection), Writer(connection)
    writer.send_and_commit(first, b"a")
    writer.send_and_abort(first, b"b")
    writer.commit_whole(writer.row(second, b"c"))
    other.send_and_commit(first, b"not its own")
    writer.init()
    writer.init()
    writer.send_and_commit(first, b"d", b"e")
    writer.send(second, b"open")
    found = client.admin.producers.history(writer.transactional_id)
    assert counts(found) == [(2, 0, 1, 1, 0), (0, 0, 2, 2, 1)]
    assert (found.producer_id, found.current_epoch, found.epochs_before) == (writer.id.producer_id, 2, None)
    assert [(each.is_current, each.is_open) for each in found.epochs] == [(True, True), (False, False)]
    assert [each.fenced_by for each in found.epochs] == [None, None]
    assert [(each.topic, each.partition, each.last_sequence) for each in found.sequences] == [(topic, 1, 0)]
    assert client.admin.producers.history(writer.id.producer_id) == found
    writer.abort()


def test_who_fenced_whom_is_told(client: msgtx.Client, connection: Connection) -> None:
    topic, ident = named_topic(connection)[0], unique("fenced <b>\u202e'")
    first = client.producer(transactional_id=ident)
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"open")
    first.flush(SECONDS)
    with client.producer(transactional_id=ident) as second:
        second.begin_transaction()
        second.send(topic, b"of the next")
        second.flush(SECONDS)
        newer, older = client.admin.producers.history(ident).epochs
        assert newer.client_host is not None
        assert older.fenced_by == f"epoch 1, process {newer.client_process} on {newer.client_host}"
        assert (older.client_host, older.aborted, newer.fenced_by) == (newer.client_host, 1, None)
        fence_producer(connection, ident)
        current, fenced, _ = client.admin.producers.history(ident).epochs
        assert (current.is_current, current.first_number, fenced.fenced_by) == (True, None, "epoch 2")
        with pytest.raises(errors.ProducerFenced):
            second.commit_transaction()
    with pytest.raises(errors.ProducerFenced):
        first.commit_transaction()
    first.close()


def test_an_epoch_that_its_producer_began_by_itself_says_so(client: msgtx.Client, connection: Connection) -> None:
    partition, writer = named_topic(connection)[1][0], Writer(connection)
    writer.send_and_commit(partition, b"a")
    init_producer_id(connection, writer.transactional_id, timeout_ms=60_000, expected=writer.id)
    newest, older = client.admin.producers.history(writer.transactional_id).epochs
    assert (newest.epoch, newest.raised_from, older.raised_from) == (1, 0, None)


def test_epochs_come_in_pages_and_what_history_has_removed_is_not_counted(
    client: msgtx.Client, connection: Connection
) -> None:
    partition, writer = named_topic(connection)[1][0], Writer(connection)
    names = []
    for _ in range(5):
        names.append(writer.send_and_commit(partition, b"a"))
        writer.send_and_commit(partition, b"b")
        writer.init()
    forget(connection, names[0])
    found = client.admin.producers.history(writer.transactional_id, most=3)
    assert ([each.epoch for each in found.epochs], found.epochs_before) == ([5, 4, 3], 3)
    found = client.admin.producers.history(writer.transactional_id, most=3, epochs_before=found.epochs_before)
    assert (counts(found), found.epochs_before) == ([(2, 0, 1, 2, 0), (1, 0, 1, 2, 0), (0, 1, 1, 1, 0)], None)
    assert found.epochs[-1].counted_from == 1


def test_of_very_many_transactions_the_newest_are_counted(client: msgtx.Client, connection: Connection) -> None:
    partition, writer = named_topic(connection)[1][0], Writer(connection)
    writer.send_and_abort(partition, b"a")
    connection.execute(
        "insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,"
        " decided_by, partitions, first_offsets, last_offsets)"
        " select %s, %s, n, 'COMMIT', msgtx.clock(), 'client', '{}', '{}', '{}' from generate_series(1, 25000) n",
        writer.id,
    )
    (only,) = client.admin.producers.history(writer.transactional_id, most=1).epochs
    assert (only.first_number, only.last_number, only.aborted) == (0, 25_000, 0)
    assert only.counted_from is not None
    assert only.committed == 25_001 - only.counted_from
    assert only.committed <= 20_000


def test_what_is_not_known_is_refused(client: msgtx.Client, connection: Connection) -> None:
    with refuses(errors.TransactionalIdNotFound, transactional_id="nobody"):
        client.admin.producers.history("nobody")
    with refuses(errors.TransactionNotFound, producer_id=2**62):
        client.admin.producers.history(2**62)
    for wrong in (-1, 2.5, None, True):
        with pytest.raises(errors.InvalidRequest):
            client.admin.producers.history(wrong)  # type: ignore[arg-type]


def test_a_role_sees_what_was_done_on_its_topics(realm: Realm) -> None:
    (ours, (mine,)), (_, (other,)) = named_topic(realm.connection), named_topic(realm.connection)
    writer, hidden = Writer(realm.connection), Writer(realm.connection)
    hidden.send_and_commit(other, b"x")
    writer.send_and_commit(other, b"a")
    writer.send_and_commit(mine, b"b")
    writer.init()
    writer.send(other, b"c")
    writer.send(mine, b"d")
    writer.commit()
    for right in ("observe", "consume", "admin"):
        with msgtx.connect(realm.roles.url_of(realm.roles.make(f"{right}:{ours}"))) as client:
            found = client.admin.producers.history(writer.id.producer_id)
            assert counts(found) == [(1, 0, 0, 1, 0), (0, None, 1, 1, 0)]
            assert [each.topic for each in found.sequences] == [ours]
            with pytest.raises(errors.TransactionNotFound):
                client.admin.producers.history(hidden.id.producer_id)
            with pytest.raises(errors.TransactionalIdNotFound):
                client.admin.producers.history(hidden.transactional_id)


def test_what_retention_noted_of_a_producer_is_told(client: msgtx.Client, connection: Connection) -> None:
    from tests.store.steps import note_sequence

    topic, (partition,) = named_topic(connection)
    writer = Writer(connection)
    writer.send_and_commit(partition, b"a")
    connection.execute("delete from msgtx.record_batch where partition_id = %s", [partition])
    (place,) = client.admin.producers.history(writer.transactional_id).sequences
    assert (place.topic, place.last_sequence) == (topic, None)
    note_sequence(connection, partition, writer.id.producer_id, 41, offset=99)
    (place,) = client.admin.producers.history(writer.transactional_id).sequences
    assert (place.epoch, place.last_sequence, place.last_offset) == (0, 41, 99)
    assert client.admin.producers.describe(TopicPartition(topic, 0))[0].last_sequence == 41


def test_the_command_shows_it_to_people_and_programs(
    connection: Connection, database_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from msgtx.cli.main import run

    topic, (partition,) = named_topic(connection)
    writer = Writer(connection)
    writer.send_and_commit(partition, b"a")
    writer.send(partition, b"b")
    writer.init()
    show = ["--url", database_url, "transactions", "history"]
    for ident in (writer.transactional_id, str(writer.id.producer_id)):
        assert run([*show, ident]) == 0
        lines = capfd.readouterr().out.splitlines()
        assert lines[0].startswith(f"producer {writer.id.producer_id} of '{writer.transactional_id}'  epoch 1 since ")
        assert "  1 committed, 1 aborted" in lines
        assert "  fenced by epoch 1" in lines
        assert f"{topic}-0  last sequence 1" in lines
    assert run([*show, writer.transactional_id, "-o", "json"]) == 0
    row = json.loads(capfd.readouterr().out)
    assert row["initialized_at"].endswith("Z")
    assert [each["first_at"] and each["first_at"][-1] for each in row["epochs"]] == [None, "Z"]
    assert run([*show, "nobody"]) == 2
