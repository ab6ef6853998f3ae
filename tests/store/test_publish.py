"""`msgtx.publish` in plain SQL: a record comes with the COMMIT of the caller's SQL transaction, or not at all (I6, I16)."""

import contextlib
import os
import random
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

import msgtx
from msgtx import errors
from msgtx.database.calls import query
from msgtx.database.embedded import binaries
from msgtx.rules.partitioner import by_crc32
from msgtx.store.append.rows import DELIVER_AT
from msgtx.store.fetch.wakeups import woken_since
from msgtx.store.topics.topics import alter_topic, create_topic, delete_topic, describe_topics
from tests.databases import Background, Connection, Server, Sessions, backend, connect, partitions_held, wait_for_lock
from tests.refusals import refuses
from tests.roles import Roles, open_roles
from tests.store.conftest import Blocked
from tests.store.steps import count, plain, unique, values

pytestmark = pytest.mark.slow

SECONDS = 30.0


@pytest.fixture
def topic(connection: Connection) -> str:
    return make_topic(connection)


@pytest.fixture
def business(connection: Connection) -> Iterator[str]:
    """A table of the user's, whose rows publish themselves."""
    connection.execute("create table public.invoice (id int primary key, amount int)")
    connection.execute("grant insert, select on public.invoice to public")
    yield "public.invoice"
    connection.execute("drop table public.invoice cascade")


def make_topic(connection: Connection, partitions: int = 1, **settings: object) -> str:
    name = unique("orders")
    create_topic(connection, name, partitions, {"retention_ms": -1, **settings})
    return name


def partitions_of(connection: Connection, topic: str) -> list[int]:
    return list(describe_topics(connection, [topic])[topic].partition_ids)


def publish(connection: Connection, topic: str, **named: object) -> None:
    """Call it with arguments by name."""
    kinds = {"partition": "::int", "timestamp": "::timestamptz", "deliver_at": "::timestamptz", "delay": "::interval"}
    arguments = "".join(f', "{name}" => %s{kinds.get(name, "")}' for name in named)
    query(connection, f"select msgtx.publish(%s{arguments})", topic, *named.values())


def published(connection: Connection, topic: str) -> list[bytes | None]:
    """Return the committed values of a topic, partition by partition."""
    return [value for partition in partitions_of(connection, topic) for value in values(connection, partition)]


# ── what is read ──


def test_a_record_is_read_as_it_was_published(client: msgtx.Client, connection: Connection, topic: str) -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    before = time.time() * 1000
    publish(connection, topic, value="Überweisung", key="ключ", headers='{"b": "é", "a": null, "cc": ""}', timestamp=moment)
    publish(connection, topic, value_bytes=b"\x00\xff", key_bytes=b"", headers="{}")
    publish(connection, topic, value="", timestamp=datetime(1970, 1, 1, tzinfo=UTC))
    publish(connection, topic, key="7")
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        records = consumer.poll(SECONDS)
    assert [record.offset for record in records] == [0, 1, 2, 3]
    assert [record.value for record in records] == ["Überweisung".encode(), b"\x00\xff", b"", None]
    assert [record.key for record in records] == ["ключ".encode(), b"", None, b"7"]
    assert [record.headers for record in records] == [(("a", None), ("b", "é".encode()), ("cc", b"")), (), (), ()]
    assert [records[0].timestamp, records[2].timestamp] == [int(moment.timestamp() * 1000), 0]
    assert all(before - 1 <= records[i].timestamp <= time.time() * 1000 for i in (1, 3))


def test_a_record_is_published_for_later(client: msgtx.Client, connection: Connection, topic: str) -> None:
    """By the header that a producer writes, in place of one that was given."""
    before = time.time() * 1000
    publish(connection, topic, value="at", deliver_at=datetime(2099, 1, 1, tzinfo=UTC), headers='{"msgtx.deliver-at": "1"}')
    publish(connection, topic, value="behind", delay="1 hour", headers='{"a": "1"}')
    publish(connection, topic, value="now", delay="-1 year")
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        at, behind, now = (dict(record.headers) for record in consumer.poll(SECONDS))
    assert at == {DELIVER_AT: b"4070908800000"}
    assert behind["a"] == b"1"
    assert before - 1 <= int(behind[DELIVER_AT] or b"") - 3_600_000 <= time.time() * 1000
    assert before - 1 <= int(now[DELIVER_AT] or b"") <= time.time() * 1000


def test_records_of_a_transaction_with_and_without_headers_and_keys_are_told_apart(
    client: msgtx.Client, connection: Connection, topic: str
) -> None:
    with connection.transaction():
        for i in range(7):
            named = {"key": str(i)} if i % 2 else {}
            if i % 3 == 1:
                named["headers"] = "{" + ", ".join(f'"h{n}": "{i}.{n}"' for n in range(i)) + "}"
            publish(connection, topic, value=str(i), timestamp=datetime.fromtimestamp(i, UTC), **named)
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        records = consumer.poll(SECONDS)
    assert count(connection, "record_batch", "partition_id = %s", partitions_of(connection, topic)[0]) == 1
    assert [(record.offset, record.value, record.timestamp) for record in records] == [
        (i, b"%d" % i, i * 1_000) for i in range(7)
    ]
    assert [record.key for record in records] == [b"%d" % i if i % 2 else None for i in range(7)]
    assert [record.headers for record in records] == [
        tuple((f"h{n}", b"%d.%d" % (i, n)) for n in range(i)) if i % 3 == 1 else () for i in range(7)
    ]


def test_records_without_a_key_go_to_one_partition_for_topic_and_transaction(connection: Connection) -> None:
    topic = make_topic(connection, 4)
    for i in range(64):
        with connection.transaction():
            for _ in range(3):
                publish(connection, topic, value=str(i), **({"key": ""} if i % 2 else {}))
    found = [values(connection, partition) for partition in partitions_of(connection, topic)]
    assert sorted(len(each) for each in found)[0] >= 3  # each is drawn; none misses 64 of 4 by chance
    for each in found:
        assert {each.count(value) for value in each} == {3}


def test_a_partition_that_is_named_counts_more_than_the_key(connection: Connection) -> None:
    topic = make_topic(connection, 3)
    for place in (2, 0):
        publish(connection, topic, value=str(place), key="k", partition=place)
    assert [values(connection, partition) for partition in partitions_of(connection, topic)] == [[b"0"], [], [b"2"]]


# ── the partitioner ──


def test_a_key_goes_where_the_clients_send_it(connection: Connection) -> None:
    chance = random.Random(20)
    keys = [chance.randbytes(chance.choice((1, 2, 3, 7, 16, 40, 300))) for _ in range(3_000)]
    rows = connection.execute(
        "select msgtx.crc32(k), msgtx.partition_of_key(k, 7), msgtx.partition_of_key(k, 100000)"
        " from unnest(%s::bytea[]) with ordinality k(k, place) order by place",
        [keys],
    ).fetchall()
    assert rows == [(zlib.crc32(key), by_crc32(key, 7), by_crc32(key, 100_000)) for key in keys]
    assert connection.execute("select msgtx.crc32(''), msgtx.partition_of_key('', 7)").fetchone() == (0, None)


def test_published_and_sent_records_of_a_key_meet_in_one_partition(client: msgtx.Client, connection: Connection) -> None:
    topic = make_topic(connection, 5)
    with client.producer() as producer:
        for i in range(40):
            producer.send(topic, b"sent", key=b"key-%d" % i)
    for i in range(40):
        publish(connection, topic, value="published", key=f"key-{i}")
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        records = []
        while len(records) < 80:
            records += consumer.poll(SECONDS)
    places = {(record.key, record.partition) for record in records}
    assert len(places) == 40


# ── refused at once ──


@pytest.mark.parametrize(
    ("named", "error", "words"),
    [
        ({"value": "a", "value_bytes": b"a"}, errors.InvalidRequest, "one value"),
        ({"key": "a", "key_bytes": b"a"}, errors.InvalidRequest, "one key"),
        ({"partition": 2}, errors.UnknownTopicOrPartition, "no partition 2, only 0 to 1"),
        ({"partition": -1}, errors.UnknownTopicOrPartition, "no partition -1"),
        ({"headers": '["a"]'}, errors.InvalidRequest, "array"),
        ({"headers": "null"}, errors.InvalidRequest, "null"),
        ({"headers": '{"a": 1}'}, errors.InvalidRequest, "a text or null"),
        ({"headers": '{"a": ["b"]}'}, errors.InvalidRequest, "a text or null"),
        ({"timestamp": "infinity"}, errors.InvalidRequest, "not infinity"),
        ({"timestamp": "1969-12-31 23:59:59.9999Z"}, errors.InvalidRequest, "not -1$"),
        ({"timestamp": "9999-01-01Z"}, errors.InvalidRequest, "not 253370764800000$"),
        ({"deliver_at": "2099-01-01Z", "delay": "1s"}, errors.InvalidRequest, "not both"),
        ({"deliver_at": "infinity"}, errors.InvalidRequest, "not at infinity"),
        ({"deliver_at": "1969-12-31Z"}, errors.InvalidRequest, "not at 1969"),
        ({"delay": "170000000 years"}, errors.InvalidRequest, "not at 170000000 years"),
        ({"delay": "1s", "headers": '["a"]'}, errors.InvalidRequest, "array"),
        ({"value": "a" * 101}, errors.RecordTooLarge, "100 bytes.*has 101"),
        ({"value": "é" * 40, "key": "k", "headers": '{"é": "%s"}' % ("a" * 19)}, errors.RecordTooLarge, "has 102"),
    ],
)
def test_what_cannot_be_stored_is_refused_in_the_statement(
    connection: Connection, named: dict[str, object], error: type[errors.MsgtxError], words: str
) -> None:
    topic = make_topic(connection, 2, max_message_bytes=100)
    with connection.transaction():
        publish(connection, topic, value="a" * 99, key="k")
        with pytest.raises(error, match=words), connection.transaction():
            publish(connection, topic, **named)
    assert published(connection, topic) == [b"a" * 99]


def test_a_topic_that_is_not_there_is_refused(connection: Connection) -> None:
    for name in ("no-such-topic", None):
        with pytest.raises(errors.UnknownTopicOrPartition, match=r"no-such-topic|NULL"):
            publish(connection, name, value="a")  # type: ignore[arg-type]  # SQL has nulls


def test_a_compacted_topic_takes_no_record_without_a_key(connection: Connection) -> None:
    topic = make_topic(connection, cleanup_policy="compact")
    with connection.transaction():
        publish(connection, topic, value="a", key="k")
        with refuses(errors.InvalidRecord, reason="no key"), connection.transaction():
            publish(connection, topic, value="a")
        publish(connection, topic, key="k")
    assert published(connection, topic) == [b"a", None]


# ── with the COMMIT, or not at all ──


def test_a_rollback_leaves_nothing(connection: Connection, topic: str) -> None:
    with connection.transaction(force_rollback=True):
        publish(connection, topic, value="a")
        assert count(connection, "staged_record") == 1
    assert published(connection, topic) == []
    assert count(connection, "staged_record") == 0


def test_a_savepoint_that_is_rolled_back_takes_its_records_along(connection: Connection, topic: str) -> None:
    with connection.transaction():
        with connection.transaction(force_rollback=True):
            publish(connection, topic, value="the first of all is taken back")
        publish(connection, topic, value="a")
        with connection.transaction():
            publish(connection, topic, value="b")
            with connection.transaction(force_rollback=True):
                publish(connection, topic, value="taken back")
        with contextlib.suppress(psycopg.errors.DivisionByZero), connection.transaction():
            connection.execute("select msgtx.publish(%s, 'taken back', partition => 1 / 0)", [topic])
        publish(connection, topic, value="c")
    assert published(connection, topic) == [b"a", b"b", b"c"]
    assert count(connection, "staged_record") == 0


def test_records_and_business_rows_are_seen_together(
    connection: Connection, session: Connection, topic: str, business: str
) -> None:
    """I6: by one statement over `committed_records_now`, and before COMMIT by none."""
    joined = (
        f'select i.id, r."offset" from {business} i full join (select * from msgtx.committed_records_now where topic = %s)'
        " r on convert_from(r.value, 'UTF8') = i.id::text order by 1, 2"
    )
    for i in range(3):
        with connection.transaction():
            publish(connection, topic, value=str(i))
            assert session.execute(joined, [topic]).fetchall() == [(n, n) for n in range(i)]
            connection.execute(f"insert into {business} values (%s)", [i])
        assert session.execute(joined, [topic]).fetchall() == [(n, n) for n in range(i + 1)]


def test_a_trigger_publishes_the_rows_of_a_table(connection: Connection, business: str, topic: str) -> None:
    connection.execute(
        "create or replace function public.publish_invoice() returns trigger language plpgsql as $$ begin"
        f" perform msgtx.publish('{topic}', value => to_jsonb(new)::text, key => new.id::text); return null; end $$"
    )
    connection.execute(f"create trigger publish after insert on {business} for each row execute function publish_invoice()")
    connection.execute(f"insert into {business} select i, i * 10 from generate_series(1, 3) i")
    with contextlib.suppress(psycopg.errors.UniqueViolation):
        connection.execute(f"insert into {business} values (4, 1), (1, 1)")
    assert published(connection, topic) == [b'{"id": %d, "amount": %d}' % (i, i * 10) for i in (1, 2, 3)]


def test_psql_publishes(database_url: str, connection: Connection, topic: str, tmp_path: Path) -> None:
    programs = binaries.choose(tmp_path / "none", binaries.Account())
    address = database_url.replace("postgresql+psycopg:", "postgresql:")
    done = subprocess.run(
        [programs.folder / "psql", address, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"],
        input=f"begin; select msgtx.publish('{topic}', value => '{{\"id\": 1}}', key => '7'); commit;"
        f" select msgtx.publish('{topic}', 'second');",
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert published(connection, topic) == [b'{"id": 1}', b"second"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (delete_topic, errors.UnknownTopicOrPartition),
        (lambda session, topic: alter_topic(session, topic, None, {"max_message_bytes": 10}), errors.RecordTooLarge),
        (lambda session, topic: alter_topic(session, topic, None, {"cleanup_policy": "compact"}), errors.InvalidRecord),
    ],
)
def test_a_topic_that_changes_before_the_commit_takes_all_of_the_transaction_back(
    connection: Connection,
    open_connection: Sessions,
    business: str,
    change: Callable[[Connection, str], None],
    error: type[errors.MsgtxError],
) -> None:
    topic, other = make_topic(connection), make_topic(connection)
    connection.execute("begin")
    connection.execute(f"insert into {business} values (1)")
    publish(connection, other, value="a")
    publish(connection, topic, value="a" * 20)
    change(open_connection(), topic)
    with pytest.raises(error):
        query(connection, "commit")
    assert connection.execute(f"select count(*) from {business}").fetchone() == (0,)
    assert published(connection, other) == []
    assert count(connection, "staged_record") == 0


# ── locks ──


def test_no_partition_is_held_while_the_session_goes_on_working(
    connection: Connection, session: Connection, topic: str
) -> None:
    (partition,) = partitions_of(connection, topic)
    with connection.transaction():
        publish(connection, topic, value="late")
        session.execute("set lock_timeout = '1s'")
        assert plain(session, partition, b"early") == 0
        publish(session, topic, value="early, too")
        publish(connection, topic, value="later")
    assert published(connection, topic) == [b"early", b"early, too", b"late", b"later"]


def test_a_commit_waits_for_the_partition_and_appends_behind(connection: Connection, topic: str, blocked: Blocked) -> None:
    """P1: the offsets are given behind the lock."""
    (partition,) = partitions_of(connection, topic)
    with connection.transaction():
        plain(connection, partition, b"a")
        waiting = blocked(publish, topic, value="b")
    waiting.result(SECONDS)
    assert published(connection, topic) == [b"a", b"b"]


def test_constraints_that_are_immediate_append_at_once(connection: Connection, topic: str) -> None:
    with connection.transaction():
        publish(connection, topic, value="a")
        connection.execute("set constraints all immediate")
        assert count(connection, "staged_record") == 0
        assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("5s",)
        publish(connection, topic, value="b")
        connection.execute("set constraints all deferred")
        publish(connection, topic, value="c")
    assert published(connection, topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("before", "within"),
    [("0", "5s"), ("1min", "5s"), ("5001", "5s"), ("1d", "5s"), ("5s", "5s"), ("4999", "4999ms"), ("1000", "1s")],
)
def test_a_session_that_may_hold_partitions_is_ended_when_it_idles(connection: Connection, before: str, within: str) -> None:
    show = "show idle_in_transaction_session_timeout"
    connection.execute("select set_config('idle_in_transaction_session_timeout', %s, false)", [before])
    shown = connection.execute(show).fetchone()
    with connection.transaction():
        connection.execute("select msgtx.limit_session()")
        assert connection.execute(show).fetchone() == (within,)
    assert connection.execute(show).fetchone() == shown


@pytest.mark.parametrize("first", ["publish", "child"])
def test_a_commit_that_waits_for_a_row_of_somebody_holds_no_partition(
    connection: Connection, open_connection: Sessions, topic: str, background: Background, first: str
) -> None:
    """P32: a deferred foreign key is checked at COMMIT, ahead of the partitions, whatever was done first."""
    parent, child = f"public.parent_{first}", f"public.child_{first}"
    connection.execute(f"create table {parent} (id int primary key)")
    connection.execute(f"create table {child} (id int references {parent} deferrable initially deferred)")
    connection.execute(f"insert into {parent} values (1)")
    somebody, buyer, other = open_connection(), open_connection(), open_connection()
    (partition,) = partitions_of(connection, topic)
    somebody.execute("begin")
    somebody.execute(f"select from {parent} where id = 1 for update")
    buyer.execute("begin")
    for what in ("publish", "child") if first == "publish" else ("child", "publish"):
        if what == "publish":
            publish(buyer, topic, value="bought")
        else:
            buyer.execute(f"insert into {child} values (1)")
    waiting = background.submit(buyer.execute, "commit")
    wait_for_lock(connection, backend(buyer))
    other.execute("set lock_timeout = '1s'")
    assert plain(other, partition, b"of another") == 0
    somebody.execute("rollback")
    waiting.result(SECONDS)
    assert published(connection, topic) == [b"of another", b"bought"]
    connection.execute(f"drop table {child}, {parent}")


def test_a_commit_waits_for_a_partition_no_longer_than_its_session_allows(
    connection: Connection, session: Connection, topic: str, background: Background
) -> None:
    session.execute("set lock_timeout = '20ms'")
    with partitions_held(connection, topic):
        session.execute("begin")
        publish(session, topic, value="late")
        waiting = background.submit(session.execute, "commit")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            waiting.result(5)
    assert published(connection, topic) == []


def test_what_deferred_triggers_publish_is_appended_with_the_rest(connection: Connection) -> None:
    """And what these trigger in turn; all of its partitions are locked in one round."""
    topic = make_topic(connection, 3)
    connection.execute("create table public.step (place int)")
    connection.execute(
        "create function public.next_step() returns trigger language plpgsql as $$ begin"
        f" perform msgtx.publish('{topic}', value => new.place::text, partition => new.place);"
        " if new.place > 0 then insert into public.step values (new.place - 1); end if; return null; end $$"
    )
    connection.execute(
        "create constraint trigger step after insert on public.step deferrable initially deferred"
        " for each row execute function public.next_step()"
    )
    with connection.transaction():
        publish(connection, topic, value="first", partition=2)
        connection.execute("insert into public.step values (2)")
    found = [values(connection, partition) for partition in partitions_of(connection, topic)]
    assert found == [[b"0"], [b"1"], [b"first", b"2"]]
    assert count(connection, "staged_record") == count(connection, "staged_commit") == 0
    connection.execute("drop table public.step")
    connection.execute("drop function public.next_step")


def test_a_lock_of_somebody_is_not_waited_for_long_by_who_holds_partitions(connection: Connection, topic: str) -> None:
    with connection.transaction():
        connection.execute("set constraints all immediate")
        publish(connection, topic, value="a")
        assert connection.execute("show lock_timeout").fetchone() == ("5s",)
        assert connection.execute("show statement_timeout").fetchone() == ("0",)
    assert connection.execute("show lock_timeout").fetchone() != ("5s",)


@pytest.mark.parametrize("role", ["origin", "local", "replica"])
def test_a_session_of_any_replication_role_publishes(
    connection: Connection, server: Server, database_url: str, topic: str, role: str
) -> None:
    """A subscription's worker is a replica, a restore may be: ordinary triggers do not fire there."""
    with server.administrator(database_url.rsplit("/", 1)[1]) as session:
        session.execute(f"set session_replication_role = {role}")
        publish(session, topic, value="paid")
    assert published(connection, topic) == [b"paid"]
    assert count(connection, "staged_record") == count(connection, "staged_commit") == 0


# ── a lot ──


def test_a_transaction_publishes_to_many_partitions(connection: Connection, session: Connection) -> None:
    """More than one notification could name."""
    topic = make_topic(connection, 1_500)
    snapshot, _ = woken_since(session, None)
    with connection.transaction():
        connection.execute(
            "select msgtx.publish(%s, value => i::text, partition => 1499 - i %% 1500) from generate_series(0, 2999) i",
            [topic],
        )
    words = woken_since(session, snapshot)[1]
    told = [int(word) for word in (words or "").split(",")]
    partitions = partitions_of(connection, topic)
    assert sorted(told) == sorted(partitions)
    for place in (0, 700, 1_499):
        assert values(connection, partitions[place]) == [b"%d" % (1_499 - place), b"%d" % (2_999 - place)]


def test_a_large_transaction_is_cut_into_batches(connection: Connection) -> None:
    topic = make_topic(connection, 2)
    with connection.transaction():
        connection.execute(
            "select msgtx.publish(%s, value => i::text, partition => 0) from generate_series(0, 21999) i", [topic]
        )
        for i in range(7):
            publish(connection, topic, value_bytes=b"%d" % i * 300_000, partition=1)
    first, second = partitions_of(connection, topic)
    sizes = connection.execute(
        "select partition_id, max(record_count), count(*), max(byte_size) from msgtx.record_batch"
        " where partition_id = any(%s) group by 1 order by 1",
        [[first, second]],
    ).fetchall()
    assert sizes[0][1] <= 10_000
    assert sizes[0][2] == 3
    assert sizes[1][1] == 2
    assert sizes[1][3] < 409_600 + 300_000
    assert values(connection, first) == [b"%d" % i for i in range(22_000)]
    assert values(connection, second) == [b"%d" % i * 300_000 for i in range(7)]


def test_no_record_is_sought_in_all_that_are_staged(connection: Connection, topic: str) -> None:
    """Also when the table was empty as the search was planned: 100,000 records would take hours."""
    connection.execute("vacuum analyze msgtx.staged_record")
    connection.execute("select pg_stat_force_next_flush()")  # else the scans of the second before are counted, too
    scans = "select seq_scan from pg_stat_xact_user_tables where relid = 'msgtx.staged_record'::regclass"
    with connection.transaction():
        connection.execute("select msgtx.publish(%s, value => i::text) from generate_series(1, 100) i", [topic])
        connection.execute("set constraints all immediate")
        assert connection.execute(scans).fetchone() == (0,)


# ── rights ──


@pytest.fixture
def roles(server: Server, database_url: str) -> Iterator[Roles]:
    with open_roles(server, database_url) as made:
        yield made


def test_who_may_produce_to_a_topic_may_publish_there(connection: Connection, roles: Roles) -> None:
    topic, other = make_topic(connection), make_topic(connection)
    role = roles.make(f"produce:{topic}")
    with connect(roles.url_of(role)) as session:
        publish(session, topic, value="a")
        for name in (other, "no-such-topic"):
            with refuses(errors.AuthorizationFailed, topic=name, right="produce"):
                publish(session, name, value="a")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("select from msgtx.staged_record")
    with connect(roles.url_of(roles.make("consume"))) as session, pytest.raises(errors.AuthorizationFailed):
        publish(session, topic, value="a")
    assert published(connection, topic) == [b"a"]


def test_a_right_that_is_taken_before_the_commit_is_missed_there(connection: Connection, roles: Roles, topic: str) -> None:
    role = roles.make(f"produce:{topic}")
    with connect(roles.url_of(role)) as session:
        session.execute("begin")
        publish(session, topic, value="a")
        roles.revoke(role, f"produce:{topic}")
        with pytest.raises(errors.AuthorizationFailed):
            query(session, "commit")
    assert published(connection, topic) == []
