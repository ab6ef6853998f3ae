"""`client.find`, `msgtx find` and `msgtx.find`: where a record is, and what became of it."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest

import msgtx
from msgtx import Acknowledgement, FoundRecord, RecordOutcome, RecordState, errors
from msgtx.database.calls import query
from msgtx.store.append.append import append
from msgtx.store.groups.groups import commit_offsets
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.admin.conftest import Realm
from tests.databases import Clock, Connection
from tests.refusals import refuses
from tests.store.steps import Writer, batch, named_topic, plain, unique

pytestmark = pytest.mark.slow

SECONDS = 30.0


def offsets(found: list[FoundRecord]) -> list[int]:
    return [each.offset for each in found]


@pytest.fixture
def place(connection: Connection) -> tuple[str, int]:
    """A topic of one partition, and the partition's id."""
    topic, (partition,) = named_topic(connection)
    return topic, partition


def test_a_record_is_found_by_what_it_holds(client: msgtx.Client, place: tuple[str, int]) -> None:
    """All that is given must fit; the last one comes first."""
    topic, _ = place
    with client.producer() as producer:
        producer.send(topic, b'{"id": 305, "who": {"name": "ada"}}', key=b"ada", headers=[("trace", b"1"), ("trace", b"2")])
        producer.send(topic, b'{"id": "305"}', key=b"ben")
        producer.send(topic, b'{"id": 3050, "name": "\\u0061da"}', key=b"ada", headers=[("trace", b"2")])
        producer.send(topic, b"305 is no JSON", headers=[("other", b"1")])
        producer.send(topic, None, key=b"ada")
    for asked, expected in (
        ({}, [4, 3, 2, 1, 0]),
        ({"limit": 2}, [4, 3]),
        ({"key": "ada"}, [4, 2, 0]),
        ({"key": b"ada", "limit": 1}, [4]),
        ({"json": "id=305"}, [1, 0]),
        ({"json": "who.name=ada"}, [0]),
        ({"json": "who.name=ad"}, []),
        ({"header": "trace=2"}, [2, 0]),
        ({"header": "trace=1", "key": "ada"}, [0]),
        ({"header": "other=1", "key": "ada"}, []),
        ({"partition": 0, "offset": 3}, [3]),
        ({"partition": 0, "offset": 5}, []),
        ({"since": timedelta(hours=1)}, [4, 3, 2, 1, 0]),
    ):
        assert offsets(client.find(topic, **asked)) == expected, asked  # type: ignore[arg-type]
    first = client.find(topic, partition=0, offset=0)[0]
    assert (first.key, first.value) == (b"ada", b'{"id": 305, "who": {"name": "ada"}}')
    assert first.headers == (("trace", b"1"), ("trace", b"2"))
    assert (first.outcome, first.groups, first.dead_letters) == (RecordOutcome.COMMITTED, [], [])


def test_a_page_goes_on_where_the_one_before_ended(
    client: msgtx.Client, connection: Connection, place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within a row of several records; a page is bounded in records and in bytes."""
    topic, partition = place
    for first in range(0, 12, 4):
        append(connection, [batch(partition, *(b'{"customer": {"id": %d}}' % (at % 2) for at in range(first, first + 4)))])

    def pages(**asked: object) -> list[list[int]]:
        found: list[list[int]] = []
        before = None
        while True:
            page = client.find_before(topic, 0, before=before, **asked)  # type: ignore[arg-type]
            found.append(offsets(page.records))
            before = page.next_before
            if before is None:
                return found

    assert pages(limit=5) == [[11, 10, 9, 8, 7], [6, 5, 4, 3, 2], [1, 0]]
    assert pages(limit=3, json="customer.id=0") == [[10, 8, 6], [4, 2, 0]]
    assert pages(limit=6, json="customer.id=1") == [[11, 9, 7, 5, 3, 1]]
    assert pages(json="customer.id=2") == [[]]
    assert offsets(client.find_before(topic, 0, before=0).records) == []
    assert client.find_before(topic, 0, limit=1, groups=False).records[0].groups == []
    monkeypatch.setattr("msgtx.admin.find.PAGE_BYTES", 1)
    assert pages(json="customer.id=0")[:2] == [[10], [8]]


def test_a_search_goes_on_to_its_end_in_steps_or_until_it_is_stopped(
    client: msgtx.Client, connection: Connection, place: tuple[str, int], clock: Callable[..., None]
) -> None:
    topic, partition = place
    plain(connection, partition, b"old", keys=[b"k"])
    clock("2 hours")
    for _ in range(510):  # rows: more than one step
        append(connection, [batch(partition, b"x")])
    assert offsets(client.find(topic, key="k", since=None)) == [0]
    assert offsets(client.find(topic, key="k", since="1h")) == []

    class AtOnce:
        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked > 1

    assert offsets(client.find(topic, key="k", since=None, stop=AtOnce())) == []
    AtOnce.asked = 0
    page = client.find_before(topic, 0, key="k", stop=AtOnce())
    assert (page.records, page.next_before) == ([], 11)
    assert [row[0] for row in query(connection, """select "offset" from msgtx.find(%s, key => 'k')""", topic)] == [0]


def test_what_became_of_its_transaction_is_said(
    client: msgtx.Client, connection: Connection, place: tuple[str, int]
) -> None:
    topic, partition = place
    for number, end in enumerate(("committed", "aborted", "open")):
        writer = Writer(connection, unique("billing"))
        writer.send(partition, b"x")
        name = writer.name
        if end == "committed":
            writer.commit()
        elif end == "aborted":
            writer.abort()
        (found,) = client.find(topic, partition=0, offset=number)
        assert found.outcome == end
        assert (found.transactional_id, found.transaction_id) == (writer.transactional_id, name)
        assert (found.decided_at is None) == (end == "open")
    writer.abort()


def test_a_group_is_past_a_record_or_behind_it(client: msgtx.Client, connection: Connection, place: tuple[str, int]) -> None:
    topic, partition = place
    plain(connection, partition, b"0", b"1", b"2")
    group = unique("group")
    for offset in (1, 2, 3):
        commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(offset)}})
        states = [client.find(topic, partition=0, offset=at)[0].groups[0] for at in range(3)]
        assert [each.state for each in states] == [RecordState.DONE if at < offset else RecordState.AHEAD for at in range(3)]
        assert [each.ahead for each in states] == [None if at < offset else at - offset for at in range(3)]
    assert states[0].told == "done"  # no row is left, or was ever there, that says when
    committed = dict(
        query(connection, "select committed_offset, committed_at from msgtx.group_offsets where group_name = %s", group)
    )
    assert [each.at for each in states] == [None, *(int(committed[at].timestamp() * 1000) for at in (2, 3))]
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(0)}})
    assert client.find(topic, partition=0, offset=2)[0].groups[0].told == "2 records ahead, no member has the partition"


def test_the_member_that_has_the_partition_is_named_and_whether_it_is_silent(
    client: msgtx.Client, connection: Connection, place: tuple[str, int], clock: Clock
) -> None:
    topic, partition = place
    plain(connection, partition, b"0")
    with client.consumer(topic, group=unique("named"), auto_offset_reset="earliest") as consumer:
        consumer.poll(SECONDS)
        (group,) = client.find(topic)[0].groups
        assert group.told == f"the group has not begun here, read by {group.member_id}"
        clock("1 hour")
        told = client.find(topic)[0].groups[0].told
        clock(None)
    assert told == f"the group has not begun here, read by {group.member_id}, which is silent"


def test_a_share_group_says_who_has_a_record(client: msgtx.Client, connection: Connection, place: tuple[str, int]) -> None:
    topic, partition = place
    plain(connection, partition, b"0", b"1", b"2", b"3")
    group = unique("share")
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
        records = [record for _ in range(3) for record in consumer.poll(SECONDS, 1)]
        consumer.acknowledge(records[0])
        consumer.acknowledge(records[1], Acknowledgement.RELEASE, delay_ms="1h")
        consumer.commit()
        told = {each.offset: each.groups[0] for each in client.find(topic)}
    assert [told[at].state for at in range(4)] == ["done", "delayed", "acquired", "ahead"]
    assert told[2].member_id is not None
    assert told[2].told.startswith(f"held by {told[2].member_id} until ")
    assert told[1].told.startswith("released until ")
    assert ", delivered 1 time" in told[1].told
    assert told[3].told == "the next one to be read"


def test_a_dead_letter_is_named(client: msgtx.Client, connection: Connection, place: tuple[str, int]) -> None:
    topic, partition = place
    plain(connection, partition, b"0", b"1")
    group = unique("share")
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
        for record in consumer.poll(SECONDS):
            consumer.acknowledge(
                record, Acknowledgement.REJECT if record.offset else Acknowledgement.ACCEPT, reason="no such customer"
            )
        consumer.commit()
    assert client.find(topic, partition=0, offset=0)[0].dead_letters == []
    (letter,) = client.find(topic, partition=0, offset=1)[0].dead_letters
    assert (letter.topic, letter.offset, letter.group) == (f"{group}-dead-letters", 0, group)
    assert letter.reason == "no such customer"


def test_sql_finds_what_the_client_finds(client: msgtx.Client, connection: Connection, place: tuple[str, int]) -> None:
    topic, partition = place
    plain(connection, partition, b'{"id": 1}', b'{"id": 2}', keys=[b"a", b"b"])
    commit_offsets(connection, {GroupMetadata("auditors"): {partition: OffsetAndMetadata(1)}})
    (row,) = query(
        connection,
        'select partition, "offset", key, value, outcome, groups from msgtx.find(%s, json_field => %s)',
        topic,
        "id=2",
    )
    assert row[:5] == (0, 1, b"b", b'{"id": 2}', "committed")
    assert [(each["group_name"], each["told"]) for each in row[5]] == [
        ("auditors", "the next one to be read, no member has the partition")
    ]


@pytest.mark.parametrize(
    ("asked", "error", "name"),
    [
        ({"json": "id"}, errors.InvalidRequest, "json"),
        ({"header": "=4711"}, errors.InvalidRequest, "header"),
        ({"offset": 3}, errors.InvalidRequest, "partition"),
        ({"key": 7}, errors.WrongType, "key"),
        ({"limit": 0}, errors.InvalidRequest, "limit"),
    ],
)
def test_a_wrong_search_is_refused(
    client: msgtx.Client, place: tuple[str, int], asked: dict[str, object], error: type[errors.MsgtxError], name: str
) -> None:
    """I16."""
    with refuses(error, name=name):
        client.find(place[0], **asked)  # type: ignore[arg-type]


def test_who_may_only_observe_learns_places_and_no_contents(realm: Realm, place: tuple[str, int]) -> None:
    topic, partition = place
    plain(realm.connection, partition, b"secret", keys=[b"ada"])
    ours, theirs = unique("ours"), unique("theirs")
    for group in (ours, theirs):
        commit_offsets(realm.connection, {GroupMetadata(group): {partition: OffsetAndMetadata(1)}})
    realm.roles.make("consume", f"consume:group:{theirs}")
    with msgtx.connect(realm.roles.url_of(realm.roles.make(f"observe:{topic}"))) as observer:
        (found,) = observer.find(topic)
        assert (found.offset, found.key, found.value, found.headers) == (0, None, None, ())
        assert [each.group for each in found.groups] == sorted([ours, theirs])
        for asked in ({"key": "ada"}, {"json": "a=b"}, {"header": "a=b"}):
            with refuses(errors.AuthorizationFailed, right="consume", topic=topic):
                observer.find(topic, **asked)
    with msgtx.connect(realm.roles.url_of(realm.roles.make(f"consume:{topic}"))) as consumer:
        (found,) = consumer.find(topic, key="ada")
        assert found.value == b"secret"
        assert [each.group for each in found.groups] == [ours]
    elsewhere = realm.guest("consume:elsewhere", "observe:elsewhere")
    with pytest.raises(errors.UnknownTopicOrPartition):
        query(elsewhere, "select * from msgtx.find(%s)", topic)


def test_the_command_shows_a_record_and_its_groups(
    realm: Realm, place: tuple[str, int], capfd: pytest.CaptureFixture[str]
) -> None:
    from msgtx.cli.main import run

    topic, partition = place
    plain(realm.connection, partition, b'{"id": 305}', keys=[b"ada"])
    commit_offsets(realm.connection, {GroupMetadata("mail"): {partition: OffsetAndMetadata(0)}})
    search = ["--url", realm.roles.url, "find", topic, "--json", "id=305"]
    assert run(search) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith(f"{topic}-0@0  ")
    assert lines[0].endswith("  key ada")
    assert [line.strip() for line in lines[1:]] == [
        'value {"id": 305}',
        "committed",
        "mail  the next one to be read, no member has the partition",
    ]
    assert run([*search, "-o", "jsonl"]) == 0
    row = json.loads(capfd.readouterr().out)
    assert (row["offset"], row["value"], row["groups"][0]["state"]) == (0, {"id": 305}, "ahead")
    assert run(["--url", realm.roles.url, "find", topic, "--key", "nobody"]) == 1
    assert capfd.readouterr().err == f"no record of {topic} fits in the last 24 h; --since looks further back\n"
