"""`msgtx offsets`: cuts as text and under names, and what lies between two of them."""

import json
from collections.abc import Callable

import pytest

from msgtx import Client, Snapshot, TopicPartition
from msgtx.admin.failover import after_failover
from msgtx.database.pool import Engine
from tests.cli.program import Ended

Msgtx = Callable[..., Ended]


def send(client: Client, topic: str, *values: bytes) -> None:
    with client.producer() as producer:
        for value in values:
            producer.send(topic, value).result(10)


def test_without_a_verb_offsets_are_listed(msgtx: Msgtx, client: Client, topic: str) -> None:
    send(client, topic, b"a", b"b")
    listed = msgtx("offsets", topic, "-o", "jsonl")
    assert listed.rows == msgtx("offsets", "list", topic, "-o", "jsonl").rows
    assert listed.rows == msgtx("offsets", "--time", "latest", topic, "-o", "jsonl").rows
    assert [row["offset"] for row in listed.rows] == [2]
    assert msgtx("offsets", "--time", "earliest", "-o", "jsonl").rows[0].keys() == listed.rows[0].keys()
    assert msgtx("offsets").code == 0
    told = msgtx("offsets", "--help")
    assert told.code == 0
    assert all(verb in told.out for verb in (b"list", b"snapshot", b"snapshots", b"delete-snapshot", b"ranges"))


def test_a_topic_that_is_called_as_a_verb_is_listed_by_naming_the_verb(msgtx: Msgtx) -> None:
    assert msgtx("topics", "create", "ranges").code == 0
    assert msgtx("offsets", "list", "ranges", "-o", "jsonl").rows[0]["topic"] == "ranges"


def test_a_cut_is_printed_saved_and_replaced(msgtx: Msgtx, client: Client, topic: str) -> None:
    send(client, topic, b"a")
    done = msgtx("offsets", "snapshot", topic, "--save", f"{topic}.cut")
    assert (done.code, done.err) == (0, "")
    cut = Snapshot.parse(done.out.decode())
    assert cut == client.snapshots.get(f"{topic}.cut")
    assert cut.ends == {TopicPartition(topic, 0): 1}
    send(client, topic, b"b")
    refused = msgtx("offsets", "snapshot", topic, "--save", f"{topic}.cut")
    assert (refused.code, refused.out) == (2, b"")
    assert "replaced only if" in refused.err
    assert refused.err.count("\n") == 1
    row = json.loads(msgtx("offsets", "snapshot", topic, "--save", f"{topic}.cut", "--replace", "-o", "json").out)
    assert row == {"name": f"{topic}.cut", "snapshot": str(client.snapshots.get(f"{topic}.cut"))}
    everything = Snapshot.parse(msgtx("offsets", "snapshot").out.decode())
    assert everything.ends[TopicPartition(topic, 0)] == 2
    assert {name for name, _ in everything.ends} == {*client.topics.list()}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("snapshot", "nowhere"), "nowhere"),
        (("snapshot", "--replace"), "--save"),
        (("snapshot", "--save", "two words"), "not allowed"),
        (("ranges", "--from", "nobody"), "no snapshot 'nobody'"),
        (("ranges", "--to", "0f8fad5b-d9cb-469f-a165-70867728950e orders"), "no snapshot"),
        (("ranges", "nowhere"), "nowhere"),
        (("snapshots", "nobody"), "no snapshot 'nobody'"),
        (("delete-snapshot", "nobody", "--yes"), "no snapshot 'nobody'"),
        (("delete-snapshot",), "NAME"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(msgtx: Msgtx, arguments: tuple[str, ...], told: str) -> None:
    done = msgtx("offsets", *arguments)
    assert (done.code, done.out) == (2, b"")
    assert told in done.err
    assert done.err.count("\n") == 1


def test_saved_cuts_are_listed_and_forgotten(msgtx: Msgtx, client: Client, wide: str) -> None:
    for name in ("z", "a"):
        assert msgtx("offsets", "snapshot", wide, "--save", f"{wide}.{name}").code == 0
    rows = [row for row in msgtx("offsets", "snapshots", "-o", "jsonl").rows if row["name"].startswith(f"{wide}.")]
    assert [row["name"] for row in rows] == [f"{wide}.a", f"{wide}.z"]
    assert (rows[0]["topics"], rows[0]["partitions"], rows[0]["readable"]) == ([wide], 3, True)
    assert Snapshot.parse(rows[0]["snapshot"]) == client.snapshots.get(f"{wide}.a")
    assert rows[0]["taken_at"].endswith("+00:00")
    table = msgtx("offsets", "snapshots").out.decode()
    assert table.split()[:6] == ["name", "taken_at", "topics", "partitions", "readable", "saved_by"]
    (one,) = msgtx("offsets", "snapshots", f"{wide}.a", "-o", "jsonl").rows
    assert one == {**rows[0], "ends": [{"topic": wide, "partition": partition, "end": 0} for partition in range(3)]}
    assert [line.split() for line in msgtx("offsets", "snapshots", f"{wide}.a").out.decode().splitlines()][-1] == [
        wide,
        "2",
        "0",
    ]
    delete = ("offsets", "delete-snapshot", f"{wide}.a", f"{wide}.z")
    assert msgtx(*delete, "--dry-run").err == f"would delete snapshot '{wide}.a'\nwould delete snapshot '{wide}.z'\n"
    assert msgtx(*delete).code == 1, "no one is there to answer"
    assert msgtx("offsets", "delete-snapshot", f"{wide}.a", "nobody", "--yes").code == 2, "and nothing is deleted"
    assert msgtx(*delete, "--yes").code == 0
    assert not [row for row in msgtx("offsets", "snapshots", "-o", "jsonl").rows if row["name"].startswith(wide)]


def test_ranges_reach_from_a_cut_to_now_or_to_a_cut(msgtx: Msgtx, client: Client, wide: str) -> None:
    send(client, wide, b"a", b"b")
    begin = msgtx("offsets", "snapshot", wide, "--save", f"{wide}.begin").out.decode().strip()
    send(client, wide, b"c", b"d", b"e")
    middle = msgtx("offsets", "snapshot", wide).out.decode().strip()
    send(client, wide, b"f")

    def records(*arguments: str) -> int:
        rows = msgtx("offsets", "ranges", *arguments, "-o", "jsonl").rows
        assert [(row["topic"], row["partition"]) for row in rows] == [(wide, partition) for partition in range(3)]
        assert all(row["end"] - row["start"] == row["records"] for row in rows)
        return sum(row["records"] for row in rows)

    assert records(wide) == 6
    assert records("--from", begin) == records("--from", f"{wide}.begin") == 4
    assert records("--from", f"{wide}.begin", "--to", middle) == 3
    assert records("--to", middle) == 5
    table = msgtx("offsets", "ranges", wide).out.decode()
    assert table.split()[:8] == ["topic", "partition", "start", "end", "records", "transactions", "bytes", "removed"]
    msgtx("offsets", "ranges", "--from", middle, "--to", begin).refuses("behind the end")


def test_who_holds_a_cut_back_is_named_on_stderr(msgtx: Msgtx, client: Client, wide: str) -> None:
    with client.producer(transactional_id=wide) as producer:
        holder = producer.begin_transaction().id
        for partition in (0, 2):
            producer.send(wide, b"open", partition=partition)
        producer.flush(10)
        told = f"held back by transaction {holder}: {wide}-0, {wide}-2 (see `msgtx transactions outcome {holder}`)\n"
        for verb in ("snapshot", "ranges"):
            done = msgtx("offsets", verb, wide)
            assert (done.code, done.err) == (0, told)
        cut = msgtx("offsets", "snapshot", wide).out.decode().strip()
        assert msgtx("offsets", "ranges", "--to", cut).err == "", "that cut was not taken now"
        producer.abort_transaction()
    assert msgtx("offsets", "snapshot", wide).err == ""


def test_many_holders_are_counted(msgtx: Msgtx, client: Client, topic: str) -> None:
    many = f"{topic}.many"
    client.topics.create(many, partitions=24)
    producers = [client.producer(transactional_id=f"{many}.{index}") for index in range(12)]
    for index, producer in enumerate(producers):
        producer.init_transactions()
        producer.begin_transaction()
        for partition in (2 * index, 2 * index + 1):
            producer.send(many, b"open", partition=partition)
        producer.flush(10)
    lines = msgtx("offsets", "snapshot", many).err.splitlines()
    assert len(lines) == 11
    assert lines[-1].startswith("and by 2 more transactions")
    for producer in producers:
        producer.close()


def test_a_cut_from_before_a_failover_is_not_read(msgtx: Msgtx, client: Client, topic: str, database_url: str) -> None:
    text = msgtx("offsets", "snapshot", topic, "--save", "before-failover").out.decode().strip()
    client.close()
    with Engine(database_url) as engine:
        after_failover(engine)
    for begin in ("before-failover", text):
        done = msgtx("offsets", "ranges", "--from", begin)
        assert (done.code, done.out, done.err.count("\n")) == (1, b"", 1)
        assert "incarnation" in done.err
    (row,) = [row for row in msgtx("offsets", "snapshots", "-o", "jsonl").rows if row["name"] == "before-failover"]
    assert row["readable"] is False
