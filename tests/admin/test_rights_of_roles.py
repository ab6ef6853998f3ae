"""What roles may: each verb of the client, and each function called by hand, against each right."""

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

import msgtx
from msgtx import TopicPartition, errors
from msgtx.coordinator.metrics import DatabaseFigures
from msgtx.database.calls import batch_array, call, query
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.generated import calls
from msgtx.store.append.append import append, append_and_decide
from msgtx.store.append.append_once import KeyedRecord, append_once
from msgtx.store.fetch.cuts import consistent_cut, spans_of_transactions
from msgtx.store.fetch.fetch import Position, fetch, list_offsets
from msgtx.store.fetch.holders import expire_holders
from msgtx.store.fetch.ranges import measure_ranges
from msgtx.store.fetch.records import count_records, first_records
from msgtx.store.fetch.wakeups import tell_readers
from msgtx.store.find import find_records, groups_of_record
from msgtx.store.groups.groups import commit_offsets, committed_offsets
from msgtx.store.monitoring import measure_groups
from msgtx.store.operator.installation import describe_installation
from msgtx.store.shares.answers import AnswerColumns, acknowledge_in_session, acknowledge_in_transaction, acknowledge_records
from msgtx.store.shares.shares import Acquiring, acquire_records, join_share_group, redrive_dead_letters
from msgtx.store.spark import follow_batch, noted_begins, record_range
from msgtx.store.topics.retention import delete_records
from msgtx.store.topics.topics import alter_topic, create_topic, delete_topic, describe_topics
from msgtx.store.transactions.producers import describe_producers, init_producer_id
from msgtx.store.transactions.seal import commit_in_session
from msgtx.store.transactions.transactions import describe_transaction, mark
from msgtx.types import GroupMetadata, Isolation, OffsetAndMetadata, TransactionId
from tests.admin.conftest import Realm
from tests.databases import Connection, Server, backend, connect, wait_for_lock
from tests.refusals import refuses
from tests.roles import Roles, open_roles
from tests.store.roster import Roster
from tests.store.sharing import ShareGroup
from tests.store.steps import Writer, append_one, append_unless_locked, batch, look, offsets_of, plain, unique

pytestmark = pytest.mark.slow

SECONDS = 30.0
COMMITTED = Isolation.READ_COMMITTED
GROUP = "seen by an administrator"
WATCHED = (
    *("topic", "partition", "record_batch", "group_offset", "transaction_decision"),
    *("dedup_key", "staged_record", "spark_range"),
)


@pytest.fixture(scope="module")
def roles(server: Server, database_url: str) -> Iterator[Roles]:
    with open_roles(server, database_url) as made:
        yield made


@pytest.fixture
def topics(connection: Connection) -> tuple[str, str]:
    """Names of two topics with a record each: one of `orders`, one of others."""
    names = unique("orders"), unique("secret")
    for name in names:
        create_topic(connection, name, 2, {})
        plain(connection, ids_of(connection, name)[0], f"record of {name}".encode(), keys=[b"key"])
    return names


def ids_of(connection: Connection, topic: str) -> tuple[int, ...]:
    return describe_topics(connection, [topic])[topic].partition_ids


def content(connection: Connection) -> dict[str, Any]:
    return {
        table: connection.execute(f"select array_agg(t::text order by t::text) from msgtx.{table} t").fetchone()
        for table in WATCHED
    }


# ── verbs ──


def send(client: msgtx.Client, topic: str) -> None:
    with client.producer(max_block_ms=2_000) as producer:
        producer.send(topic, b"sent").result(SECONDS)


def send_with_a_dedup_key(client: msgtx.Client, topic: str) -> None:
    key = unique("key")
    with client.producer(max_block_ms=2_000) as producer:
        assert not producer.send(topic, b"sent", dedup_key=key).result(SECONDS).duplicate
        assert producer.send(topic, b"sent", dedup_key=key).result(SECONDS).duplicate


def send_in_a_transaction(client: msgtx.Client, topic: str) -> None:
    with client.producer(transactional_id=unique("id"), max_block_ms=2_000) as producer, producer.transaction():
        producer.send(topic, b"sent", partition=0)
        producer.flush(SECONDS)
        producer.send(topic, b"sent", partition=1)


def poll(client: msgtx.Client, topic: str) -> None:
    with client.consumer(auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.poll(SECONDS)
        assert consumer.lag() == {TopicPartition(topic, 0): 0}


def poll_as_a_member(client: msgtx.Client, topic: str) -> None:
    with client.consumer(topic, group=unique("group"), auto_offset_reset="earliest") as consumer:
        assert consumer.poll(SECONDS)
        consumer.commit()
        assert consumer.committed([TopicPartition(topic, 0)])


def commit(client: msgtx.Client, topic: str) -> None:
    with client.consumer(group=unique("group"), enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 1})


def snapshots(client: msgtx.Client, topic: str) -> None:
    """Names of snapshots are not topics: all roles that may consume something share them."""
    name = unique("cut")
    cut = client.snapshots.save(name, client.snapshot([topic])).snapshot
    assert client.snapshots.get(name) == cut
    assert client.snapshots.ranges(end=cut)[TopicPartition(topic, 0)].records == 1
    client.snapshots.delete(name)


def ends(client: msgtx.Client, topic: str) -> None:
    assert client.admin.partitions.describe(TopicPartition(topic, 0)).log_end_offset > 0


def describe(client: msgtx.Client, topic: str) -> None:
    assert client.topics.describe(topic).partitions == 2


def create(client: msgtx.Client, topic: str) -> None:
    client.topics.create(f"{topic}-new")


def delete(client: msgtx.Client, topic: str) -> None:
    client.topics.delete(topic)


def producers(client: msgtx.Client, topic: str) -> None:
    client.admin.producers.describe(TopicPartition(topic, 0))


def sweep(client: msgtx.Client, topic: str) -> None:
    client.sweep()


def fence(client: msgtx.Client, topic: str) -> None:
    with contextlib.suppress(errors.TransactionalIdNotFound):
        client.admin.transactions.fence("nobody's")


def verify(client: msgtx.Client, topic: str) -> None:
    assert client.admin.verify([topic]).violations == []


def coordinators(client: msgtx.Client, topic: str) -> None:
    assert len(client.admin.coordinators()) == 50


def hanging(client: msgtx.Client, topic: str) -> None:
    assert client.admin.transactions.find_hanging(topic=topic) == []


def activity(client: msgtx.Client, topic: str) -> None:
    assert sum(piece.records or 0 for piece in client.admin.activity(topic=topic)) > 0


def rows_of_a_log(client: msgtx.Client, topic: str) -> None:
    assert client.admin.partitions.rows(TopicPartition(topic, 0)).rows


def spark(client: msgtx.Client, topic: str) -> None:
    client.admin.spark.list()


def database(client: msgtx.Client, topic: str) -> None:
    assert client.admin.database().tables


def delete_a_group(client: msgtx.Client, topic: str) -> None:
    client.admin.groups.delete(GROUP)


def metrics(client: msgtx.Client, topic: str) -> None:
    text = DatabaseFigures(client.runtime.engine).text().decode()
    failed = re.findall(r'reading_failed{figures="(\w+)"} 1.0', text)
    if failed or "msgtx_database_up 1.0" not in text:
        with client.runtime.engine.connection() as connection:
            list(measure_groups(connection, most=1))  # which says why


def shares(client: msgtx.Client, topic: str) -> None:
    group = unique("share")
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    assert client.admin.shares.describe(group).lag == 0
    assert group in [found.group for found in client.admin.shares.list()]
    client.admin.shares.reset_offsets(group, "earliest", topics=[topic])
    client.admin.shares.delete(group)


def poll_as_a_member_of_a_share_group(client: msgtx.Client, topic: str) -> None:
    with client.share_consumer(topic, group=unique("share"), acknowledgement_mode="explicit") as consumer:
        consumer.poll(0)
        consumer.commit()


ANY = {"produce", "consume", "observe", "admin"}
VERBS: dict[Callable[[msgtx.Client, str], None], set[str]] = {
    send: {"produce"},
    send_with_a_dedup_key: {"produce"},
    send_in_a_transaction: {"produce"},
    poll: {"consume"},
    poll_as_a_member: {"consume"},
    commit: {"consume"},
    snapshots: {"consume"},
    ends: ANY,
    describe: ANY,
    create: {"admin"},
    delete: {"admin"},
    producers: {"observe"},
    sweep: {"admin everywhere"},
    fence: {"admin everywhere"},
    verify: {"admin everywhere"},
    coordinators: {"observe everywhere"},
    hanging: {"observe everywhere"},
    activity: {"consume", "observe"},
    rows_of_a_log: {"consume", "observe"},
    spark: {"observe everywhere"},
    database: {"observe everywhere"},
    metrics: {"observe everywhere"},
    delete_a_group: {"admin everywhere"},
    shares: {"admin everywhere"},
    poll_as_a_member_of_a_share_group: {"consume"},
}
RIGHTS = {
    "produce": "produce:orders*",
    "consume": "consume:orders*",
    "observe": "observe:orders*",
    "observe everywhere": "observe:*",
    "admin": "admin:orders*",
    "admin everywhere": "admin:*",
    "elsewhere": "",  # every right, on other topics
}
WIDER = {  # rights that include another
    "observe": {"observe everywhere", "admin", "admin everywhere"},
    "observe everywhere": {"admin everywhere"},
    "admin": {"admin everywhere"},
}


@pytest.fixture(scope="module")
def clients(roles: Roles) -> Iterator[dict[str, msgtx.Client]]:
    """A client for each of `RIGHTS`."""
    with contextlib.ExitStack() as stack:
        made = {}
        for name, right in RIGHTS.items():
            granted = [right] if right else [f"{can}:elsewhere*" for can in sorted(ANY)]
            made[name] = stack.enter_context(msgtx.connect(roles.url_of(roles.make(*granted))))
        yield made


@pytest.mark.parametrize("role", RIGHTS)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_role_may_do_what_it_has_the_right_to_and_nothing_else(
    realm: Realm,
    verb: Callable[[msgtx.Client, str], None],
    role: str,
    clients: dict[str, msgtx.Client],
    topics: tuple[str, str],
) -> None:
    if verb is delete_a_group:
        commit_offsets(
            realm.connection, {GroupMetadata(GROUP): {ids_of(realm.connection, topics[0])[0]: OffsetAndMetadata(0)}}
        )
    allowed = VERBS[verb].union(*(WIDER.get(right, ()) for right in VERBS[verb]))
    if role in allowed:
        verb(clients[role], topics[0])
        return
    before = content(realm.connection)
    hidden = (errors.UnknownTopicOrPartition,) if role == "elsewhere" else ()
    with pytest.raises((errors.AuthorizationFailed, *hidden)) as refused:
        verb(clients[role], topics[0])
    assert content(realm.connection) == before
    if isinstance(refused.value, errors.AuthorizationFailed):
        assert "`msgtx db grant --role " in str(refused.value)
    if role != "elsewhere" and "admin everywhere" not in VERBS[verb]:
        assert re.search(rf"--can [a-z|]*{min(VERBS[verb]).split()[0]}\b", str(refused.value))


def test_what_only_the_owner_may_is_refused_to_all(clients: dict[str, msgtx.Client]) -> None:
    for client in clients.values():
        for statement in ("select msgtx.change_incarnation()", "table msgtx.record_batch", "table msgtx.setting"):
            with client.runtime.engine.connection() as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_every_function_is_refused_to_a_role_without_rights(realm: Realm) -> None:
    role = realm.roles.make()
    with pytest.raises(errors.AuthorizationFailed, match="permission denied for schema msgtx"):
        msgtx.connect(realm.roles.url_of(role))
    realm.roles.sql(f"grant usage on schema msgtx to {role}")
    with pytest.raises(errors.AuthorizationFailed, match=rf"db grant --role {role} --can produce\|consume\|observe\|admin"):
        msgtx.connect(realm.roles.url_of(role))


def test_a_worker_consumes_and_produces_with_its_two_rights(
    realm: Realm, topics: tuple[str, str], client: msgtx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """All that a client does in the background works, too: notifications, markers, heartbeats."""
    source, target = topics
    role = realm.roles.make(f"consume:{source}", f"produce:{target}")
    with caplog.at_level(logging.DEBUG, "msgtx"), msgtx.connect(realm.roles.url_of(role)) as worker:
        report = worker.process(
            source, to=target, group=source, transactional_id=source, transform=lambda record: record.value, idle_timeout=0.1
        )
        assert report.records_out == 1
        with refuses(errors.AuthorizationFailed, topic=source, right="produce"):
            send(worker, source)
        with refuses(errors.AuthorizationFailed, topic=target, right="consume"):
            poll(worker, target)
    told = [record.getMessage() for record in caplog.records]  # also from clients whose role may not consume
    assert [text for text in told if "permission" in text and f"--role {role} " in text] == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with client.runtime.engine.connection() as connection:
        states = dict(connection.execute("select transactional_id, state from msgtx.transactions").fetchall())
    assert states[source] == "CompleteCommit"
    assert [record.value for record in everything(client, target)] == [
        f"record of {name}".encode() for name in (target, source)
    ]


def everything(client: msgtx.Client, topic: str) -> list[Any]:
    with client.consumer(topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        found: list[Any] = []
        while any(consumer.lag().values()) or not found:
            found += consumer.poll(SECONDS)
        return found


def test_dead_letters_are_sent_back_with_the_rights_to_read_and_to_send_them(
    realm: Realm, topics: tuple[str, str], client: msgtx.Client
) -> None:
    """A step without the right to produce changes nothing."""
    topic, group = topics[0], unique("share")
    letters = f"{group}-dead-letters"
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
        for record in consumer.poll(SECONDS):
            consumer.acknowledge(record, msgtx.Acknowledgement.REJECT)
    before = client.admin.partitions.describe_all(topic)
    for granted, lacks in (
        ((f"consume:{topic}", f"produce:{topic}"), f"consume on topic {letters}"),
        ((f"consume:{letters}",), "produce on the topic of partition"),
        ((f"consume:{letters}", f"consume:{topic}"), f"produce on topic {topic}"),
    ):
        with (
            msgtx.connect(realm.roles.url_of(realm.roles.make(*granted))) as other,
            pytest.raises(errors.AuthorizationFailed, match=f"lacks the right to {lacks}"),
        ):
            other.admin.shares.redrive(group)
    assert client.admin.partitions.describe_all(topic) == before
    with msgtx.connect(realm.roles.url_of(realm.roles.make(f"consume:{letters}", f"produce:{topic}"))) as worker:
        assert worker.admin.shares.describe(group).dead_letters == 1
        assert worker.admin.shares.redrive(group).sent == 1


# ── by hand ──


@dataclass(frozen=True)
class Places:
    """A partition of the topic on which the caller has every right, one of another topic; its producer."""

    ours: int
    theirs: int
    theirs_name: str
    producer: tuple[int, int]

    @property
    def name(self) -> TransactionId:
        return TransactionId(*self.producer, 0)

    def cut(self, connection: Connection) -> str:
        return f"{describe_installation(connection).incarnation} other:0=1@{self.theirs}"

    def rows(self) -> list[Any]:
        return [
            batch(partition, b"x", producer=self.producer, number=0, sequence=0)
            for partition in sorted((self.ours, self.theirs))
        ]


def decide_with_offsets(connection: Connection, places: Places) -> None:
    writer = Writer(connection)
    writer.send(places.ours, b"x")
    try:
        writer.decide("COMMIT", offsets=offsets_of(("g", places.theirs, 1)))
    finally:
        writer.abort()


def answers_for(partition: int) -> AnswerColumns:
    return AnswerColumns(("g",), (1,), (partition,), (0,), (0,), ("accept",), (None,))


def redrive_from_elsewhere(connection: Connection, places: Places) -> None:
    group = unique("secret")
    join_share_group(
        connection, group, member_id="a", client_host=None, client_process=None, session_timeout_ms=10_000, topics=[]
    )
    redrive_dead_letters(connection, group, 0, upto=None, most=1, skip_missing=False)


# Keyed by the function that must refuse, and the special case.
BY_HAND: dict[str, Callable[[Connection, Places], object]] = {
    "append": lambda c, p: append_one(c, batch(p.theirs, b"x")),
    "append_a_refused_one": lambda c, p: append_one(c, batch(p.theirs, b"x", producer=(1, 77), sequence=9)),
    "append_to_both": lambda c, p: append(c, [batch(at, b"x") for at in sorted((p.ours, p.theirs))]),
    "append_in_a_transaction": lambda c, p: append(c, p.rows()),
    "append_and_decide": lambda c, p: append_and_decide(c, p.name, p.rows()),
    "append_and_decide_with_offsets": lambda c, p: append_and_decide(
        c, p.name, [row for row in p.rows() if row.partition_id == p.ours], offsets=offsets_of(("g", p.theirs, 1))
    ),
    "write_batch_to_a_topic": lambda c, p: query(c, "select msgtx.write_batch('app', 1, null, %s, '{x}')", p.theirs_name),
    "cut_of_a_topic": lambda c, p: query(c, "select msgtx.cut(%s)", p.theirs_name),
    "ranges": lambda c, p: query(c, "select msgtx.ranges(%s)", p.cut(c)),
    "position": lambda c, p: query(c, "select msgtx.position('g', %s)", p.cut(c)),
    "append_and_decide_unless_locked": lambda c, p: append_unless_locked(c, p.name, p.rows()),
    "tell_readers": lambda c, p: tell_readers(c, [p.ours, p.theirs]),
    "decide_with_offsets": decide_with_offsets,
    "commit_offsets": lambda c, p: commit_offsets(
        c, {GroupMetadata("g"): {p.ours: OffsetAndMetadata(1), p.theirs: OffsetAndMetadata(1)}}
    ),
    "commit_as_a_member": lambda c, p: commit_offsets(c, {GroupMetadata("g", "m", 1): {p.theirs: OffsetAndMetadata(1)}}),
    "acquire_records": lambda c, p: acquire_records(c, Acquiring("g", 1, 1, [p.theirs], 1, 1)),
    "read_records": lambda c, p: call(c, calls.READ_RECORDS, Int4Array([p.theirs]), Int8Array([0]), Int8Array([9])),
    "acknowledge_records": lambda c, p: acknowledge_records(c, answers_for(p.theirs), call_number=1),
    "acknowledge_in_transaction": lambda c, p: acknowledge_in_transaction(c, p.name, answers_for(p.theirs), call_number=1),
    "acknowledge_in_session": lambda c, p: acknowledge_in_session(c, answers_for(p.theirs)),
    "append_acknowledge_decide": lambda c, p: append_and_decide(
        c, p.name, [row for row in p.rows() if row.partition_id == p.ours], answers=answers_for(p.theirs)
    ),
    "redrive_dead_letters_of_a_topic": redrive_from_elsewhere,
    "committed_offsets": lambda c, p: committed_offsets(c, "g", [p.ours, p.theirs]),
    "fetch_batches": lambda c, p: fetch(
        c, {p.ours: Position(0), p.theirs: Position(0)}, isolation=COMMITTED, max_bytes=1_000_000, max_rows=10
    ),
    "fetch_batches_without_rows": lambda c, p: fetch(
        c, {p.theirs: Position(0)}, isolation=COMMITTED, max_bytes=0, max_rows=0
    ),
    "fetch_batches_all_rows": lambda c, p: c.execute(
        "select * from msgtx.fetch_batches(%s::int[], '{0}', '{null}', 'x', 10000, null)", [[p.theirs]]
    ),
    "list_offsets": lambda c, p: list_offsets(c, {p.theirs: 0}, COMMITTED),
    "expire_holders": lambda c, p: expire_holders(c, [p.ours, p.theirs]),
    "expire_holders_of_a_group": lambda c, p: expire_holders(c, [p.theirs], "g"),
    "first_records": lambda c, p: first_records(c, {p.theirs: 0}),
    "find_records": lambda c, p: find_records(
        c, p.theirs, 9, since_ms=None, offset=None, key=None, words=None, json=None, header=None, most=1
    ),
    "groups_of_record": lambda c, p: groups_of_record(c, p.theirs, 0),
    "count_records": lambda c, p: count_records(c, {p.theirs: 0}, COMMITTED),
    "consistent_cut": lambda c, p: consistent_cut(c, [p.ours, p.theirs]),
    "spans_of_transactions": lambda c, p: spans_of_transactions(c, {p.ours: 0, p.theirs: 0}, {p.ours: 1, p.theirs: 1}),
    "measure_ranges": lambda c, p: list(measure_ranges(c, {p.ours: (0, 1), p.theirs: (0, 1)}, None)),
    "last_stable_offset": lambda c, p: c.execute("select msgtx.last_stable_offset(%s)", [p.theirs]),
    "describe_producers": lambda c, p: describe_producers(c, p.theirs),
    "append_once": lambda c, p: append_once(c, [KeyedRecord(at, "key", b"x", None, 7) for at in (p.ours, p.theirs)]),
    "append_at_commit": lambda c, p: call(
        c, calls.APPEND_AT_COMMIT, batch_array(c, [batch(at, b"x") for at in sorted((p.ours, p.theirs))])
    ),
    "append_plain_in_a_session": lambda c, p: commit_in_session(c, [batch(at, b"x") for at in sorted((p.ours, p.theirs))]),
    "check_offsets_of_a_session": lambda c, p: commit_in_session(c, [], offsets_of(("g", p.theirs, 1))),
    "record_range": lambda c, p: record_range(c, unique("query"), 0, group="g", ranges={p.ours: (0, 1), p.theirs: (0, 1)}),
    "follow_batch": lambda c, p: follow_batch(c, "g", {p.ours: (0, 1), p.theirs: (0, 1)}, source_id="a"),
    "noted_begins": lambda c, p: noted_begins(c, "g", {p.ours: 1, p.theirs: 1}),
    "base_offset_of": lambda c, p: c.execute("select msgtx.base_offset_of(%s, 0)", [p.theirs]),
    "check_range": lambda c, p: c.execute("select msgtx.check_range(%s, 0, 1, gen_random_uuid(), true)", [p.theirs]),
    "delete_records": lambda c, p: delete_records(c, {p.ours: 1, p.theirs: 1}),
    "alter_topic": lambda c, p: alter_topic(c, p.theirs_name, 3, {}),
    "publish_to_a_topic": lambda c, p: c.execute("select msgtx.publish(%s, value => 'x')", [p.theirs_name]),
    "create_topic": lambda c, p: create_topic(c, "secret-new", 1, {}),
    "delete_topic": lambda c, p: delete_topic(c, p.theirs_name),
    "delete_no_topic": lambda c, p: delete_topic(c, "secret-unknown"),
}


def test_who_may_not_consume_a_topic_begins_no_group_with_it(realm: Realm, topics: tuple[str, str]) -> None:
    """Nor does joining tell whether there is one of that name."""
    group = unique("share")
    joined = join_share_group(
        realm.guest(*(f"{can}:orders*" for can in ANY)),
        group,
        member_id="a",
        client_host=None,
        client_process=None,
        session_timeout_ms=10_000,
        topics=[*topics, "nowhere"],
    )
    begun = realm.connection.execute(
        "select t.name from msgtx.share_state s join msgtx.partition using (partition_id)"
        " join msgtx.topic t using (topic_id) where s.group_id = %s",
        [joined.group_id],
    ).fetchall()
    assert {name for (name,) in begun} == {topics[0]}


@pytest.mark.parametrize("call", BY_HAND)
def test_other_topics_are_refused_to_calls_by_hand(realm: Realm, call: str, topics: tuple[str, str]) -> None:
    ours, theirs = (ids_of(realm.connection, name)[0] for name in topics)
    caller = realm.guest(*(f"{can}:orders*" for can in ANY))
    places = Places(ours, theirs, topics[1], init_producer_id(caller, unique("hand"), timeout_ms=60_000))
    before = content(realm.connection)
    with pytest.raises((psycopg.errors.InsufficientPrivilege, errors.AuthorizationFailed)) as refused:
        BY_HAND[call](caller, places)
    told = str(refused.value)
    assert "lacks the right to" in told
    if "topic" not in call:
        assert topics[1] not in told  # a role without rights on it does not learn its name
        assert f"partition {theirs}" in told
    after = content(realm.connection)
    if call.startswith("decide"):
        before.pop("transaction_decision"), after.pop("transaction_decision")  # its abort
        before.pop("record_batch"), after.pop("record_batch")
    assert after == before


def test_who_only_produces_to_a_topic_is_told_its_ends_and_no_cut(realm: Realm, topics: tuple[str, str]) -> None:
    """A cut says what others' transactions hold together; that it may be asked for elsewhere does not count."""
    (partition, *_) = ids_of(realm.connection, topics[0])
    caller = realm.guest("produce:orders*", "consume:elsewhere*")
    assert list_offsets(caller, {partition: 0}, COMMITTED).keys() == {partition}
    with refuses(errors.AuthorizationFailed, right="consume"):
        consistent_cut(caller, [partition])
    assert consistent_cut(realm.guest("admin:orders*"), [partition]).keys() == {partition}


PARTITION_LOCK, GROUP_LOCK = 1836279555, 1836279554


@pytest.mark.parametrize("call", ["append", "append_and_decide", "commit_offsets"])
def test_a_partition_that_comes_while_a_call_waits_is_not_written(
    realm: Realm, call: str, server: Server, background: ThreadPoolExecutor
) -> None:
    """No role has rights on a partition that does not exist: what counts is what exists when the call writes."""
    caller, helper = realm.guest("produce:orders*", "consume:orders*"), realm.guest("produce:orders*")
    create_topic(realm.connection, unique("orders"), 1, {})
    (last,) = realm.connection.execute("select max(partition_id) from msgtx.partition").fetchone() or (0,)
    name = TransactionId(*init_producer_id(caller, unique("x"), timeout_ms=60_000), 0)
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: append_one(caller, batch(last + 1, b"x")),
        "append_and_decide": lambda: append_and_decide(
            caller, name, [batch(last + 1, b"x", producer=(name.producer_id, 0), number=0, sequence=0)]
        ),
        "commit_offsets": lambda: commit_offsets(caller, {GroupMetadata("race"): {last + 1: OffsetAndMetadata(1)}}),
    }
    helper.execute("begin")
    if call == "commit_offsets":
        helper.execute("select pg_advisory_xact_lock(%s, hashtext('race'))", [GROUP_LOCK])
    else:
        helper.execute("select pg_advisory_xact_lock(%s, %s)", [PARTITION_LOCK, last + 1])
    waiting: Future[object] = background.submit(calls[call])
    with server.administrator() as administrator:
        wait_for_lock(administrator, backend(caller))
    create_topic(realm.connection, unique("secret"), 1, {})
    helper.execute("rollback")
    with pytest.raises(errors.AuthorizationFailed, match=f"partition {last + 1}"):
        waiting.result(SECONDS)
    for table in ("record_batch", "group_offset"):
        stored = realm.connection.execute(f"select count(*) from msgtx.{table} where partition_id > %s", [last]).fetchone()
        assert stored == (0,)


def test_a_partition_that_is_gone_answers_a_role_as_it_answers_the_owner(realm: Realm) -> None:
    caller = realm.guest("produce", "consume:orders*", "produce:orders*")
    assert isinstance(append_one(caller, batch(2_000_000_000, b"x")).error, errors.UnknownTopicOrPartition)
    assert fetch(caller, {2_000_000_000: Position(0)}, isolation=COMMITTED, max_bytes=1, max_rows=1) == {}
    with pytest.raises(errors.UnknownTopicOrPartition):
        commit_offsets(caller, {GroupMetadata("g"): {2_000_000_000: OffsetAndMetadata(1)}})


def test_a_group_shows_offsets_of_topics_that_the_role_may_consume(realm: Realm, topics: tuple[str, str]) -> None:
    ours, theirs = (ids_of(realm.connection, name)[0] for name in topics)
    group = unique("group")
    commit_offsets(realm.connection, {GroupMetadata(group): {ours: OffsetAndMetadata(1), theirs: OffsetAndMetadata(1)}})
    assert set(committed_offsets(realm.connection, group, None)) == {ours, theirs}
    assert set(committed_offsets(realm.guest("consume:orders*"), group, None)) == {ours}
    assert set(committed_offsets(realm.guest("consume"), group, None)) == {ours, theirs}


def test_the_view_of_groups_shows_those_that_were_assigned_a_topic_of_the_caller(
    realm: Realm, topics: tuple[str, str]
) -> None:
    ours, theirs = (Roster(realm.connection) for _ in topics)
    for roster, topic in zip((ours, theirs), topics, strict=True):
        roster.join("a")
        roster.assign({ids_of(realm.connection, topic)[1]: "a"})
    for right in ("consume", "observe", "admin"):
        seen = {name for (name,) in realm.guest(f"{right}:orders*").execute("select name from msgtx.consumer_groups")}
        assert seen & {ours.name, theirs.name} == {ours.name}, right


# ── which role the caller has ──


def test_a_right_is_for_a_name_or_for_all_that_begin_so(realm: Realm) -> None:
    for name in ("a_b", "axb", "a_b-c", "a_bcd"):
        create_topic(realm.connection, name, 1, {})
    for pattern, seen in (("a_b", ["a_b"]), ("a_b*", ["a_b", "a_b-c", "a_bcd"]), ("a_bc*", ["a_bcd"]), ("a_b-c", ["a_b-c"])):
        for strings in ("on", "off"):
            caller = realm.guest(f"consume:{pattern}")
            caller.execute(f"set standard_conforming_strings = {strings}")
            assert list(describe_topics(caller, None)) == seen, pattern
    namesake = realm.guest("consume:group:a_b*", "produce:transactional_id:a_b*", "consume:elsewhere")
    assert list(describe_topics(namesake, None)) == [], "a right on other names"


def test_set_role_counts_and_nothing_of_the_login(realm: Realm, topics: tuple[str, str]) -> None:
    partition = ids_of(realm.connection, topics[0])[0]
    team = realm.roles.make("consume:orders*", options="nologin")
    login = realm.roles.make("produce:orders*", options="login noinherit")
    realm.roles.sql(f"grant {team} to {login}, {realm.roles.owner}")
    with contextlib.closing(realm.roles.connect(login)) as caller:
        plain(caller, partition, b"x")
        with pytest.raises(errors.AuthorizationFailed):
            list(count_records(caller, {partition: 0}, COMMITTED))
        caller.execute(f"set role {team}")
        assert count_records(caller, {partition: 0}, COMMITTED) == {partition: 2}
        with pytest.raises(errors.AuthorizationFailed):
            plain(caller, partition, b"x")
        caller.execute("reset role")
        plain(caller, partition, b"x")
    with contextlib.closing(connect(realm.roles.url)) as owner:
        assert set(describe_topics(owner, None)) >= set(topics)
        owner.execute(f"set role {team}")
        assert topics[1] not in describe_topics(owner, None)
        with pytest.raises(errors.AuthorizationFailed):
            plain(owner, partition, b"x")
        owner.execute("set role none")
        plain(owner, partition, b"x")


def test_members_have_their_roles_rights_and_the_owners_members_all(realm: Realm, topics: tuple[str, str]) -> None:
    partitions = [ids_of(realm.connection, name)[0] for name in topics]
    team = realm.roles.make("produce:orders*", options="nologin")
    member, owner, superuser = realm.roles.make(), realm.roles.make(), realm.roles.make(options="login superuser")
    realm.roles.sql(f"grant {team} to {member}")
    realm.roles.sql(f"grant {realm.roles.owner} to {owner}")
    for role, may in ((member, partitions[:1]), (owner, partitions), (superuser, partitions)):
        with contextlib.closing(realm.roles.connect(role)) as caller:
            for partition in partitions:
                with contextlib.nullcontext() if partition in may else pytest.raises(errors.AuthorizationFailed):
                    plain(caller, partition, b"x")
    with contextlib.closing(realm.roles.connect(owner)) as caller:
        values = {value for (value,) in caller.execute("select value from msgtx.records where topic = %s", [topics[1]])}
        assert b"x" in values


def test_a_revoked_right_is_gone_for_the_next_call_of_an_open_session(realm: Realm, topics: tuple[str, str]) -> None:
    partition = ids_of(realm.connection, topics[0])[0]
    role = realm.roles.make("produce:orders*", f"produce:{topics[0]}", "produce:unrelated")
    with contextlib.closing(realm.roles.connect(role)) as caller:
        for right in ("produce:orders*", f"produce:{topics[0]}", "produce:unrelated"):
            with contextlib.nullcontext() if right == "produce:orders*" else pytest.raises(errors.AuthorizationFailed):
                plain(caller, partition, b"x")
                assert realm.roles.revoke(role, right)
                plain(caller, partition, b"x")
            realm.roles.revoke(role, right)
        with pytest.raises(errors.AuthorizationFailed, match="permission denied"):
            plain(caller, partition, b"x")


# ── views ──

VIEWS = ("records", "committed_records", "committed_records_now")
LEAK = """
    create or replace function pg_temp.leak(name text, anything anyelement) returns boolean language plpgsql cost 1e-7 as $$
    begin
        raise notice '%: leaked %', name, anything;
        return true;
    end $$"""


def test_views_show_the_topics_of_the_caller(realm: Realm, topics: tuple[str, str]) -> None:
    consumer, producer = realm.guest("consume:orders*"), realm.guest("produce:orders*")
    for view in VIEWS:
        statement = f"select value from msgtx.{view} where topic = any(%s) order by 1"
        assert len(realm.connection.execute(statement, [list(topics)]).fetchall()) == 2, view
        assert consumer.execute(statement, [list(topics)]).fetchall() == [(f"record of {topics[0]}".encode(),)], view
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            producer.execute(statement, [list(topics)])
    for caller in (consumer, producer):
        seen = {topic for (topic,) in caller.execute("select topic from msgtx.partitions")}
        assert {*topics} & seen == {topics[0]}
    assert {*topics} <= {topic for (topic,) in realm.connection.execute("select topic from msgtx.partitions")}


def test_the_view_of_transactions_shows_of_each_what_the_caller_may_see(realm: Realm, topics: tuple[str, str]) -> None:
    ours, theirs = (ids_of(realm.connection, name)[0] for name in topics)
    both, other, empty = Writer(realm.connection), Writer(realm.connection), Writer(realm.connection)
    for writer, partitions in ((both, (ours, theirs)), (other, (theirs,))):
        for partition in partitions:
            writer.send(partition, b"open")
    ids = [both.id.producer_id, other.id.producer_id, empty.id.producer_id]
    statement = (
        "select producer_id, partitions, first_offsets from msgtx.transactions where producer_id = any(%s) order by 1"
    )

    def seen(caller: Connection) -> dict[int, tuple[list[int], list[int]]]:
        return {producer: (partitions, first) for producer, partitions, first in caller.execute(statement, [ids])}

    whole = {ids[0]: ([ours, theirs], [1, 1]), ids[1]: ([theirs], [2]), ids[2]: ([], [])}
    try:
        for right in ("consume", "observe", "admin"):
            some = realm.guest(f"{right}:orders*")
            assert seen(some) == {ids[0]: ([ours], [1])}
            described = describe_transaction(some, both.transactional_id)
            assert described is not None
            assert described.partitions == [TopicPartition(topics[0], 0)]
            assert describe_transaction(some, other.transactional_id) is None
            assert seen(realm.guest(right)) == whole
        assert seen(realm.guest("consume:elsewhere*")) == {}
        assert seen(realm.connection) == whole
    finally:
        both.abort(), other.abort()


@pytest.mark.parametrize(
    "view",
    [
        *VIEWS,
        "partitions",
        "transactions",
        "topics",
        "record_batches",
        "transaction_markers",
        "consumer_groups",
        "group_offsets",
        "share_groups",
        "share_partitions",
        "share_spans",
    ],
)
def test_a_function_in_a_query_learns_nothing_of_other_topics(realm: Realm, view: str, topics: tuple[str, str]) -> None:
    """A cheap function is evaluated before dearer conditions, but not before the one that selects the caller's topics."""
    caller = realm.guest("consume:orders*")
    for topic in topics:
        partition, _ = ids_of(realm.connection, topic)
        writer = Writer(realm.connection, f"id of {topic}")
        writer.send(partition, b"decided")
        writer.commit(offsets_of((f"group of {topic}", partition, 1)))
        mark(realm.connection)
        ShareGroup(realm.connection, partition, name=f"share-of-{topic}").acquire("a")
    theirs = partition
    writer.send(theirs, b"open")
    notices: list[tuple[str, str]] = []
    caller.add_notice_handler(lambda notice: notices.append(tuple((notice.message_primary or "").split(": leaked ", 1))))
    caller.execute(LEAK)
    columns = [column.name for column in caller.execute(f"select * from msgtx.{view} limit 0").description or ()]
    leaks = " and ".join(f"pg_temp.leak('{column}', v.\"{column}\")" for column in columns)
    secret = {f"{prefix}{topics[1]}" for prefix in ("", "id of ", "group of ", "share-of-")}
    secret |= {f"\\x{f'record of {topics[1]}'.encode().hex()}"}
    for settings in ("on", "off"):
        caller.execute(f"set enable_nestloop = {settings}")
        notices.clear()
        caller.execute(f"select 1 from msgtx.{view} v where {leaks}").fetchall()
        assert {column for column, _ in notices} == set(columns)
        assert [told for told in notices if told[1] in secret or told == ("partition_id", str(theirs))] == []


@pytest.mark.parametrize("who", ["owner", "consumer"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_range_of_a_partition_is_read_by_the_index(realm: Realm, view: str, who: str, topics: tuple[str, str]) -> None:
    caller = realm.connection if who == "owner" else realm.guest("consume:orders*")
    with caller.transaction():
        caller.execute("set local enable_seqscan = off")
        plan = "\n".join(
            line
            for (line,) in caller.execute(
                f"explain select value from msgtx.{view} where topic = 'a' and partition = 0 and base_offset >= 7"
            )
        )
    assert "record_batch_pkey" in plan
    assert "(base_offset >= 7))" in plan


# ── the whole client ──


def test_an_administrator_of_everything_runs_what_an_operator_runs(
    realm: Realm, topics: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with msgtx.connect(realm.roles.url_of(realm.roles.make("admin"))) as operator:
        checks = {finding.subject for finding in operator.admin.doctor() if finding.text.startswith("cannot be checked")}
        assert checks <= {"schema"}  # only the owner sees the tables' versions
        assert operator.admin.transactions.list() is not None
        assert operator.topics.list() != []
        with refuses(errors.AuthorizationFailed, right="consume"):
            poll(operator, topics[0])
    assert caplog.records == []


def test_an_observer_of_everything_sees_what_an_administrator_sees_and_changes_nothing(
    realm: Realm, topics: tuple[str, str], client: msgtx.Client
) -> None:
    group, share = unique("group"), unique("share")
    commit_offsets(realm.connection, {GroupMetadata(group): {ids_of(realm.connection, topics[1])[0]: OffsetAndMetadata(0)}})
    client.admin.shares.configure(share, {})
    names = (f"consume:group:{group}", "produce:transactional_id:id*")
    other = realm.roles.make("consume", "produce", *names)  # others may not use these
    with (
        msgtx.connect(realm.roles.url_of(other)) as owner,
        owner.producer(transactional_id="id of another"),
        msgtx.connect(realm.roles.url_of(realm.roles.make("observe"))) as observer,
    ):
        before = content(realm.connection)
        looks: list[Callable[[msgtx.Client], object]] = [
            lambda c: c.admin.groups.describe(group).lag,
            lambda c: c.admin.groups.members(group),
            lambda c: [found.group for found in c.admin.groups.list()],
            lambda c: [found.group for found in c.admin.shares.list()],
            lambda c: c.admin.shares.describe(share).dead_letters,
            lambda c: {found.subject for found in c.admin.doctor()} - {"schema"},
            lambda c: c.admin.transactions.describe("id of another"),
            lambda c: c.topics.list(),
        ]
        for number, look in enumerate(looks):
            assert look(observer) == look(client), number
        refused: list[Callable[[], object]] = [
            lambda: observer.admin.groups.delete(group),
            lambda: observer.admin.shares.delete(share),
            lambda: observer.admin.transactions.fence("id of another"),
            lambda: observer.topics.delete(topics[0]),
            lambda: poll(observer, topics[0]),
            lambda: commit(observer, topics[0]),
        ]
        for change in refused:
            with pytest.raises(errors.AuthorizationFailed):
                change()
        assert content(realm.connection) == before
    guest = realm.guest("observe")
    for view in VIEWS:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            guest.execute(f"select value from msgtx.{view}")


def test_a_client_hears_of_commits_of_others(
    realm: Realm, topics: tuple[str, str], database_url: str, client: msgtx.Client
) -> None:
    """LISTEN needs no right of msgtx; a notification holds only a partition's number."""
    url = realm.roles.url_of(realm.roles.make(f"consume:{topics[0]}"))
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(msgtx.connect(url))
        consumer = stack.enter_context(reader.consumer(topics[0], auto_offset_reset="latest", enable_auto_commit=False))
        consumer.poll(0.05)
        timer = threading.Timer(0.05, send, [client, topics[0]])
        timer.start()
        assert [record.value for record in consumer.poll(SECONDS)] == [b"sent"]
        timer.join()


def orders(connection: Connection) -> int:
    """Return the partition of a topic that the rights `orders*` cover."""
    name = unique("orders")
    create_topic(connection, name, 1, {})
    (partition,) = describe_topics(connection, [name])[name].partition_ids
    return partition


def test_who_may_only_produce_learns_where_the_log_ends_and_counts_nothing(realm: Realm) -> None:
    partition = orders(realm.connection)
    caller = realm.guest("produce:orders*", "consume:others*")
    append_one(realm.connection, batch(partition, b"a"))
    assert look(caller, partition, max_bytes=0, max_rows=0).log_end_offset == 1
    with pytest.raises((psycopg.errors.InsufficientPrivilege, errors.AuthorizationFailed)):
        count_records(caller, {partition: 0}, COMMITTED)
    with pytest.raises((psycopg.errors.InsufficientPrivilege, errors.AuthorizationFailed)):
        first_records(caller, {partition: 0})


def test_who_observes_all_topics_administers_only_its_own(realm: Realm, topics: tuple[str, str]) -> None:
    caller = realm.guest("observe", "admin:elsewhere*")
    assert set(describe_topics(caller, None)) >= set(topics)
    with refuses(errors.AuthorizationFailed, right="admin", topic=topics[0]):
        delete_topic(caller, topics[0])


def test_who_may_not_produce_does_not_learn_where_a_key_is_held(realm: Realm) -> None:
    partition = orders(realm.connection)
    record = KeyedRecord(partition, "key", b"a", None, 1)
    append_once(realm.connection, [record])
    with pytest.raises((psycopg.errors.InsufficientPrivilege, errors.AuthorizationFailed)):
        append_once(realm.guest("consume:orders*", "produce:others*"), [record])
