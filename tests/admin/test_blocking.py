"""`client.admin.transactions.blocking`: undecided transactions, and all that waits for their end."""

import json
from collections.abc import Callable

import pytest

import msgtx
from msgtx import BlockingTransaction
from msgtx.store.append.append import append
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.producers import fence_producer
from msgtx.store.transactions.seal import seal as seal_it
from msgtx.store.transactions.seal import take_seat
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.admin.conftest import Realm
from tests.databases import Connection
from tests.store.sharing import ShareGroup
from tests.store.steps import Writer, named_topic, offsets_of, plain, seal, unique


def blocking(client: msgtx.Client, *writers: Writer) -> list[BlockingTransaction]:
    """Return those of these writers."""
    names = {writer.name for writer in writers}
    return [one for one in client.admin.transactions.blocking() if one.transaction_id in names]


def commit(connection: Connection, group: str, partition: int, offset: int) -> None:
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(offset)}})


def test_what_waits_for_a_transaction_is_told(client: msgtx.Client, connection: Connection) -> None:
    topic, (partition, other) = named_topic(connection, 2)
    writer, behind = Writer(connection), Writer(connection)
    caught_up, late, aborted = (unique(name) for name in ("a-caught-up", "b-late", "c-aborted"))
    plain(connection, partition, b"before")
    behind.send_and_abort(partition, b"aborted")
    writer.send(partition, b"open")
    behind.send(partition, b"open, too")
    plain(connection, partition, b"a", b"b")
    plain(connection, other, b"elsewhere")
    for group, offset in ((caught_up, 2), (late, 0), (aborted, 1)):
        commit(connection, group, partition, offset)
        commit(connection, group, other, 1)
    share = ShareGroup(connection, partition, name=unique("d-share"))
    share.acquire("a")
    (one,) = blocking(client, writer, behind)
    assert (one.transaction_id, one.transactional_id, one.state) == (writer.name, writer.transactional_id, "Ongoing")
    assert (one.records_waiting, one.advice) == (4, f"`msgtx transactions abort {writer.name}`")
    assert one.age_ms is not None
    (place,) = one.partitions
    assert (place.topic, place.partition, place.last_stable_offset, place.log_end_offset) == (topic, 0, 2, 6)
    assert [(each.group, each.is_share_group) for each in place.groups] == [
        (caught_up, False), (aborted, False), (share.name, True),
    ]  # fmt: skip
    assert place.waits_since is not None
    assert all(each.since is not None and each.since >= place.waits_since for each in place.groups)
    assert one.session is not None
    assert (one.session.pid, one.session.visible) == (connection.info.backend_pid, True)
    assert one.session.query
    assert len(one.session.query) <= 200
    writer.abort()
    (one,) = blocking(client, writer, behind)
    assert one.transaction_id == behind.name
    behind.abort()


def test_the_oldest_one_comes_first_and_the_number_is_bounded(
    client: msgtx.Client, connection: Connection, clock: Callable[..., None]
) -> None:
    partitions = named_topic(connection, 3)[1]
    writers = [Writer(connection, timeout_ms=600_000) for _ in partitions]
    for number, (writer, partition) in enumerate(zip(writers, partitions, strict=True)):
        clock(f"{number} seconds")
        writer.send(partition, b"open", timeout_ms=600_000)
    writers[2].send(partitions[1], b"behind")
    assert [one.transaction_id for one in blocking(client, *writers)] == [writer.name for writer in writers]
    assert len(client.admin.transactions.blocking(most=2)) == 2
    for writer in writers:
        writer.abort()
    assert blocking(client, *writers) == []


def test_a_sealed_one_tells_the_session_that_will_decide_it(
    client: msgtx.Client, connection: Connection, open_connection: Callable[..., Connection]
) -> None:
    topic, (first, second) = named_topic(connection, 2)
    writer, prepared, session = Writer(connection), Writer(connection), open_connection()
    with session.transaction():
        seat = take_seat(session)
        writer.send(first, b"sealed")
        assert seal_it(connection, writer.name, "session", tails=writer.tails, seat=seat).error is None
        prepared.send(second, b"prepared")
        seal(connection, prepared.name, "external")
        one, other = blocking(client, writer, prepared)
        assert one.session is not None
        assert (one.state, one.session.pid) == ("Prepared", session.info.backend_pid)
        assert (one.session.state, one.advice) == ("idle in transaction", f"`msgtx transactions abort {writer.name}`")
        assert other.advice.startswith("decide it where it was prepared")
        assert topic in {place.topic for place in other.partitions}
    fence_producer(connection, prepared.transactional_id)
    fence_producer(connection, writer.transactional_id)


def test_offsets_and_acknowledgements_that_wait_are_told_too(client: msgtx.Client, connection: Connection) -> None:
    topic, (partition, taken) = named_topic(connection, 2)
    sealed, answering, group = Writer(connection), Writer(connection), unique("group")
    offsets = offsets_of((group, partition, 7))
    assert seal_it(connection, sealed.name, "external", tails={}, offsets=offsets).error is None
    plain(connection, taken, b"a", b"b")
    share = ShareGroup(connection, taken)
    share.acquire("a")
    share.answer_in(answering.name, "a", {1: "accept"})
    prepared, ongoing = blocking(client, sealed, answering)
    assert (prepared.state, prepared.partitions, prepared.acknowledgements) == ("Prepared", [], [])
    assert [(each.group, each.topic, each.partition, each.offset) for each in prepared.offsets] == [(group, topic, 0, 7)]
    assert (ongoing.state, ongoing.partitions, ongoing.offsets) == ("Ongoing", [], [])
    assert [(each.group, each.first_offset, each.answer) for each in ongoing.acknowledgements] == [(share.name, 1, "accept")]
    fence_producer(connection, sealed.transactional_id)
    answering.abort()
    assert blocking(client, sealed, answering) == []


def test_a_transaction_of_many_partitions_is_one_and_its_groups_are_bounded(
    client: msgtx.Client, connection: Connection
) -> None:
    partitions, writer = named_topic(connection, 2_000)[1], Writer(connection)
    rows = [writer.row(partition, b"wide") for partition in partitions]
    for at in range(0, len(rows), 250):
        append(connection, rows[at : at + 250], flushed=False)
    connection.execute("insert into msgtx.consumer_group (name) select 'many-' || n from generate_series(1, 100) n")
    commit(connection, "many-1", partitions[0], 0)
    (one,) = blocking(client, writer)
    assert (one.records_waiting, len(one.partitions)) == (2_000, 2_000)
    searched = [place.groups_searched for place in one.partitions]
    assert searched == sorted(searched, reverse=True)
    assert 100 <= sum(searched) <= 200
    assert [each.group for each in one.partitions[0].groups] == ["many-1"]
    decide(connection, writer.name, "ABORT", tails={})
    connection.execute("delete from msgtx.consumer_group where name like 'many-%'")


def test_a_role_sees_what_waits_on_its_topics(realm: Realm) -> None:
    (ours, (mine,)), (_, (other,)) = named_topic(realm.connection), named_topic(realm.connection)
    both, hidden = Writer(realm.connection), Writer(realm.connection)
    both.send(other, b"a")
    both.send(mine, b"b")
    hidden.send(named_topic(realm.connection)[1][0], b"c")
    elsewhere = Writer(realm.connection)
    offsets = offsets_of((unique("group"), other, 1))
    assert seal_it(realm.connection, elsewhere.name, "external", tails={}, offsets=offsets).error is None
    group = unique("group")
    commit(realm.connection, group, mine, 0)
    try:
        for right in ("observe", "consume", "admin"):
            with msgtx.connect(realm.roles.url_of(realm.roles.make(f"{right}:{ours}"))) as client:
                (one,) = client.admin.transactions.blocking()
                assert one.transaction_id == both.name
                assert [place.topic for place in one.partitions] == [ours]
                assert [each.group for each in one.partitions[0].groups] == [group]
                assert one.session is not None
                assert (one.session.visible, one.session.query) == (False, None)
        with msgtx.connect(realm.roles.url_of(realm.roles.make("consume:elsewhere*"))) as client:
            assert client.admin.transactions.blocking() == []
    finally:
        both.abort(), hidden.abort()
        fence_producer(realm.connection, elsewhere.transactional_id)


def test_the_command_shows_it_to_people_and_programs(
    connection: Connection, database_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from msgtx.cli.main import run

    topic, (partition,) = named_topic(connection)
    writer, group = Writer(connection, unique("it's \u202e")), unique("group")
    writer.send(partition, b"open")
    commit(connection, group, partition, 0)
    assert run(["--url", database_url, "transactions", "blocking"]) == 0
    out = capfd.readouterr().out
    assert f"transaction {writer.name} of \"it's \\u202e" in out
    assert f"  {topic}-0  readers stop at offset 0 in front of 1 record" in out
    assert f"    group {group} waits since " in out
    assert f"  to end it: `msgtx transactions abort {writer.name}`" in out
    assert run(["--url", database_url, "transactions", "blocking", "-o", "json"]) == 0
    (row,) = [one for one in json.loads(capfd.readouterr().out) if one["transaction_id"] == str(writer.name)]
    assert row["opened_at"].endswith("Z")
    assert row["partitions"][0]["groups"][0]["since"].endswith("Z")
    assert row["session"]["state_since"].endswith("Z")
    writer.abort()
