"""What is read: options become ranges that are committed, whole, and not removed (I14, I15, I16)."""

import contextlib
import json
import logging
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import msgtx
from msgtx import Snapshot, TopicPartition, errors
from msgtx.database.pool import Engine
from msgtx.declared.spark import SINK, SOURCE, Option
from msgtx.spark_jobs.reading.offsets import Plan, await_replica, begin, between, latest, plan
from msgtx.spark_jobs.reading.read_options import AtTime, parse
from msgtx.spark_jobs.writing import write_options
from msgtx.store.operator.installation import change_incarnation
from tests.refusals import refuses
from tests.store.steps import Writer, seal, unique

FOREIGN = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.fixture
def wide(client: msgtx.Client) -> str:
    """A topic of three partitions; partition n holds 2 + n records of times 1000, 1001, …"""
    name = unique("wide")
    client.topics.create(name, partitions=3, retention_ms=-1)
    with client.producer() as producer:
        for partition in range(3):
            for at in range(2 + partition):
                producer.send(name, b"%d" % at, partition=partition, timestamp=1_000 + at)
    return name


def bounds(found: Plan) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.start, each.end) for each in found.ranges}


def planned(engine: Engine, **options: Any) -> dict[int, tuple[int, int]]:
    return bounds(plan(engine, parse(options)))


def delete_before(client: msgtx.Client, topic: str, partition: int, before: int) -> None:
    client.admin.partitions.delete_records({TopicPartition(topic, partition): before})


# Options


def test_names_are_read_in_every_spelling_and_values_as_spark_or_python_gives_them() -> None:
    spark = parse({
        "SUBSCRIBE": "a, b", "startingoffsets": '{"a":{"0":23},"b":{"1":-2}}', "failOnDataLoss": "FALSE",
        "minpartitions": "7", "includeHeaders": "true", "read_url": "postgresql://r/x",
    })  # fmt: skip
    python = parse({
        "subscribe": ["a", "b"], "starting_offsets": {TopicPartition("a", 0): 23, TopicPartition("b", 1): -2},
        "fail_on_data_loss": False, "min_partitions": 7, "include_headers": True, "readUrl": "postgresql://r/x",
        "group": None,
    })  # fmt: skip
    assert spark == python
    assert spark.topics == ("a", "b")
    assert parse({"assign": '{"a":[1,0]}'}) == parse({"assign": [("a", 0), ("a", 1)]})
    assert parse({"subscribePattern": "a.*", "maxTriggerDelay": "2m"}, streaming=True).max_trigger_delay_ms == 120_000


def test_defaults_are_those_of_kafkas_source() -> None:
    batch, stream = parse({"subscribe": "a"}), parse({"subscribe": "a"}, streaming=True)
    assert (batch.starting, batch.ending, stream.starting) == ("earliest", "latest", "latest")
    assert (batch.fail_on_data_loss, batch.include_headers, batch.min_partitions) == (True, False, None)
    assert parse({"subscribe": "a", "group": "g"}, streaming=True).starting == "earliest"
    assert (stream.cut_delay_ms, parse({"subscribe": "a", "cut_delay_ms": "0"}, streaming=True).cut_delay_ms) == (1_000, 0)
    both = {"subscribe": "a", "startingOffsets": "earliest", "startingTimestamp": "5"}
    assert parse(both).starting == AtTime(5)


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize("option", SOURCE, ids=[each.name for each in SOURCE])
def test_each_option_of_the_reference_is_read(option: Option, streaming: bool) -> None:
    """An empty text is no value of any."""
    others = {} if option.name in {"subscribePattern", "assign"} else {"subscribe": "a"}
    with pytest.raises(errors.MsgtxError):
        parse({**others, option.name: ""}, streaming=streaming)


@pytest.mark.parametrize("option", SINK, ids=[each.name for each in SINK])
def test_each_option_of_a_sink_is_read(option: Option) -> None:
    for streaming in (False, True):
        batch = {} if streaming else {"txnVersion": "1"}
        with refuses(errors.ConfigError):
            write_options.parse({"txnAppId": "a", **batch, option.name: ""}, streaming=streaming)


def test_a_version_is_as_large_as_a_column_holds() -> None:
    """bigint; a time in ns fits."""
    for version, fits in ((0, True), (2**63 - 1, True), (2**63, False), (-1, False)):
        given = {"txnAppId": "a", "txnVersion": str(version)}
        with contextlib.nullcontext() if fits else refuses(errors.ConfigError):
            assert write_options.parse(given, streaming=False).version == version


def test_a_password_is_in_no_text_of_the_options() -> None:
    options = parse({"subscribe": "a", "url": "postgresql://u:hidden@h/d", "read_url": "postgresql://u:hidden@r/d"})
    assert "hidden" not in repr(options)
    assert pickle.loads(pickle.dumps(options)).url == "postgresql://u:hidden@h/d"  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give subscribe, subscribePattern or assign"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign are given"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": [None]}, "None is none"),
        ({"subscribe": 7}, "not 7"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"assign": "a"}, r'assign reads {"topic": \[0, 1\]}'),
        ({"assign": '{"a":[-1]}'}, "assign reads"),
        ({"assign": "{}"}, "names no partition"),
        ({"subscribe": "a", "minPartition": "3"}, "unknown option 'minPartition'; the nearest known one is 'minPartitions'"),
        ({"subscribe": "a", "endOffset": "x"}, "the nearest known one is"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions is a whole number above 0"),
        ({"subscribe": "a", "minPartitions": True}, "minPartitions is a whole number above 0"),
        ({"subscribe": "a", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "would begin where it ends"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-1}}'}, "would begin where it ends"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets of a-0"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":"1"}}'}, "startingOffsets of a-0"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"x":1}}'}, "startingOffsets reads"),
        ({"subscribe": "a", "startingOffsets": "[1]"}, "startingOffsets reads"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "startingOffsets reads"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "would end where it begins"),
        ({"subscribe": "a", "endingOffsets": '{"a":{"0":-2}}'}, "would end where it begins"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "milliseconds"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        ({"subscribe": "a", "start": f"{FOREIGN}", "group": "g"}, "start and group are given"),
        ({"subscribe": "a", "snapshot": f"{FOREIGN}", "endingOffsets": "latest"}, "snapshot and endingOffsets are given"),
        ({"subscribe": "a", "url": ""}, "url is a text that is not empty"),
        ({"subscribe": "a", "group": 3}, "group is a text"),
        ({"subscribe": "a", "cutDelayMs": "5"}, "cut_delay_ms is for streams"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(errors.ConfigError, match=says):
        parse(options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"snapshot": f"{FOREIGN} a:0=1"}, "subscribe"),
        ({"subscribe": "a", "endingOffsets": "latest"}, "a stream has no end"),
        ({"subscribe": "a", "snapshot": f"{FOREIGN} a:0=1"}, "a stream has no end"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "-1"}, "above 0"),
        ({"subscribe": "a", "maxTriggerDelay": "1 fortnight"}, "maxTriggerDelay"),
        ({"subscribe": "a", "cut_delay_ms": "-1"}, "cut_delay_ms"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(errors.ConfigError, match=says):
        parse(options, streaming=True)


def test_options_of_kafkas_consumers_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    options = {"subscribe": "a", "kafka.bootstrap.servers": "h:9092", "kafka.isolation.level": "x", "groupIdPrefix": "y"}
    with caplog.at_level(logging.WARNING, "msgtx.spark"):
        assert parse(options) == parse({"subscribe": "a"})
        parse({"subscribe": "a", "maxOffsetsPerTrigger": "5"})
    assert [record.message for record in caplog.records] == [
        "ignored, for there is no Kafka here: groupIdPrefix, kafka.bootstrap.servers, kafka.isolation.level",
        "ignored in a batch: maxOffsetsPerTrigger",
    ]


# Which partitions, from where, to where


def test_everything_that_is_committed_is_read_unless_told_otherwise(engine: Engine, client: msgtx.Client, wide: str) -> None:
    assert planned(engine, subscribe=wide) == {0: (0, 2), 1: (0, 3), 2: (0, 4)}
    assert planned(engine, subscribe_pattern=f"{wide[:-1]}[{wide[-1]}]") == {0: (0, 2), 1: (0, 3), 2: (0, 4)}
    assert planned(engine, assign=json.dumps({wide: [2, 0]})) == {0: (0, 2), 2: (0, 4)}
    assert planned(engine, subscribe_pattern="no such .*") == {}
    found = plan(engine, parse({"subscribe": wide, "minPartitions": "5"}))
    parts = found.split(parse({"subscribe": wide, "minPartitions": 5}))
    assert [(each.partition, each.start, each.end) for each in parts] == [
        (0, 0, 2), (1, 0, 1), (1, 1, 3), (2, 0, 2), (2, 2, 4)
    ]  # fmt: skip
    assert found.end == client.snapshot([wide])
    assert found.size == 9


def test_what_is_undecided_ends_every_partition_of_the_transactions_behind_it(
    engine: Engine, client: msgtx.Client, wide: str
) -> None:
    """I15."""
    with client.producer(transactional_id="open") as one, client.producer(transactional_id="split") as two:
        one.begin_transaction()
        one.send(wide, b"open", partition=0).result(10)
        with two.transaction():
            two.send(wide, b"split", partition=0)
            two.send(wide, b"split", partition=2)
        assert planned(engine, subscribe=wide) == {0: (0, 2), 1: (0, 3), 2: (0, 4)}
        given = {wide: {0: -1, 1: 2, 2: 5}}
        assert planned(engine, subscribe=wide, ending_offsets=given) == {0: (0, 2), 1: (0, 2), 2: (0, 5)}
        with refuses(errors.OffsetOutOfRange, offset=3, limit=2):
            planned(engine, subscribe=wide, ending_offsets={wide: {0: 3, 1: -1, 2: -1}})
        with refuses(errors.OffsetOutOfRange, topic=wide, partition=1):
            planned(engine, subscribe=wide, ending_offsets={wide: {0: 2, 1: 9, 2: -1}})
        one.abort_transaction()
    assert planned(engine, subscribe=wide) == {0: (0, 4), 1: (0, 3), 2: (0, 5)}


def test_offsets_by_partition_name_all_of_them(engine: Engine, wide: str) -> None:
    given = {"startingOffsets": json.dumps({wide: {"0": 1, "1": -2, "2": 4}})}
    assert planned(engine, subscribe=wide, **given) == {0: (1, 2), 1: (0, 3), 2: (4, 4)}
    assert planned(engine, subscribe=wide, **given, ending_offsets={wide: {0: 1, 1: 0, 2: -1}}) == {
        0: (1, 1), 1: (0, 0), 2: (4, 4),
    }  # fmt: skip
    with refuses(errors.ConfigError, partition=0, name="endingOffsets", offset=0, limit=1):
        planned(engine, subscribe=wide, **given, ending_offsets={wide: {0: 0, 1: 0, 2: -1}})
    with pytest.raises(errors.ConfigError, match=f"{wide}-2 is read, and not in it"):
        planned(engine, subscribe=wide, starting_offsets={wide: {0: 0, 1: 0}})
    with pytest.raises(errors.ConfigError, match=f"{wide}-1 is in it, and not read"):
        planned(engine, assign={wide: [0]}, starting_offsets={wide: {0: 0, 1: 0}})
    with pytest.raises(errors.ConfigError, match=f"{wide}-1 is in it, and not read"):
        planned(engine, assign={wide: [0]}, ending_offsets_by_timestamp={wide: {0: 0, 1: 0}})


def test_times_become_offsets(engine: Engine, wide: str) -> None:
    assert planned(engine, subscribe=wide, starting_timestamp=1_001) == {0: (1, 2), 1: (1, 3), 2: (1, 4)}
    assert planned(engine, subscribe=wide, ending_timestamp="1002") == {0: (0, 2), 1: (0, 2), 2: (0, 2)}
    by_partition = {"startingOffsetsByTimestamp": json.dumps({wide: {"0": 1_001, "1": 0, "2": 1_003}})}
    assert planned(engine, subscribe=wide, **by_partition) == {0: (1, 2), 1: (0, 3), 2: (3, 4)}
    with refuses(errors.OffsetOutOfRange, topic=wide, partition=0):
        planned(engine, subscribe=wide, starting_timestamp=1_002)
    strategy = {"starting_offsets_by_timestamp_strategy": "latest"}
    assert planned(engine, subscribe=wide, starting_timestamp=1_002, **strategy) == {0: (2, 2), 1: (2, 3), 2: (2, 4)}


def test_a_group_goes_on_where_it_has_committed(engine: Engine, client: msgtx.Client, wide: str) -> None:
    with client.consumer(group="reader", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(wide, 1)])
        consumer.commit({TopicPartition(wide, 1): 2})
    assert planned(engine, subscribe=wide, group="reader") == {0: (0, 2), 1: (2, 3), 2: (0, 4)}
    other = {"startingOffsets": json.dumps({wide: {"0": 1, "1": 0, "2": 3}})}
    assert planned(engine, subscribe=wide, group="reader", **other) == {0: (1, 2), 1: (2, 3), 2: (3, 4)}
    assert begin(engine, parse({"subscribe": wide, "group": "reader"}, streaming=True)).ends[TopicPartition(wide, 1)] == 2


def test_a_group_that_stands_inside_a_transaction_is_not_held_back_by_it(
    engine: Engine, client: msgtx.Client, wide: str
) -> None:
    """I15: what it has not read of it is not divided."""
    with client.producer(transactional_id=unique("open")) as one, client.producer(transactional_id=unique("torn")) as torn:
        one.begin_transaction()
        one.send(wide, b"open", partition=0).result(10)
        with torn.transaction():
            for partition in range(3):
                torn.send(wide, b"torn", partition=partition)
        with client.consumer(group="inside", enable_auto_commit=False) as consumer:
            consumer.assign([TopicPartition(wide, 1)])
            consumer.commit({TopicPartition(wide, 1): 4})
        with client.producer() as producer:
            producer.send(wide, b"later", partition=1)
        assert planned(engine, subscribe=wide) == {0: (0, 2), 1: (0, 3), 2: (0, 4)}
        assert planned(engine, subscribe=wide, group="inside") == {0: (0, 2), 1: (4, 5), 2: (0, 4)}
        one.abort_transaction()


def test_a_snapshot_is_the_end_and_an_earlier_one_the_start(engine: Engine, client: msgtx.Client, wide: str) -> None:
    early = client.snapshot([wide])
    with client.producer() as producer:
        producer.send(wide, b"later", partition=1).result(10)
    late = client.snapshot([wide])
    assert planned(engine, snapshot=early) == {0: (0, 2), 1: (0, 3), 2: (0, 4)}
    assert planned(engine, snapshot=str(late), start=str(early)) == {0: (2, 2), 1: (3, 4), 2: (4, 4)}
    assert planned(engine, snapshot=late, assign={wide: [1]}) == {1: (0, 4)}
    assert planned(engine, snapshot=late, subscribe_pattern=wide) == {0: (0, 2), 1: (0, 4), 2: (0, 4)}
    assert planned(engine, subscribe=wide, start=late) == {0: (2, 2), 1: (4, 4), 2: (4, 4)}
    for part in (Snapshot({}, early.incarnation), Snapshot({TopicPartition(wide, 0): 1}, early.incarnation)):
        with refuses(errors.ConfigError, name="snapshot"):
            planned(engine, snapshot=part, assign={wide: [1]})
    with refuses(errors.ConfigError, name="snapshot"):
        planned(engine, snapshot=Snapshot({}, early.incarnation), subscribe=wide)
    with pytest.raises(errors.IncarnationChanged, match=FOREIGN):
        planned(engine, snapshot=Snapshot(early.ends, FOREIGN))
    with pytest.raises(errors.IncarnationChanged, match=FOREIGN):
        planned(engine, subscribe=wide, start=Snapshot(early.ends, FOREIGN))


# What is no longer there


def test_a_start_that_retention_has_removed_is_refused_or_moved(
    engine: Engine, client: msgtx.Client, wide: str, caplog: pytest.LogCaptureFixture
) -> None:
    early = client.snapshot([wide])
    delete_before(client, wide, 2, 3)
    assert planned(engine, subscribe=wide)[2] == (3, 4), "earliest is the first record left"
    given = {"subscribe": wide, "starting_offsets": {wide: {0: 0, 1: 0, 2: 1}}}
    with pytest.raises(
        errors.OffsetOutOfRange, match=f"{wide}-2: offset 1 was removed, the log starts at 3; failOnDataLoss"
    ):
        planned(engine, **given)
    assert planned(engine, **given, fail_on_data_loss=False)[2] == (3, 4)
    assert planned(engine, **given, fail_on_data_loss=False, ending_offsets={wide: {0: 2, 1: 3, 2: 2}})[2] == (3, 3)
    assert any("offset 1 was removed" in record.message for record in caplog.records)
    beyond = {"subscribe": wide, "starting_offsets": {wide: {0: 9, 1: 0, 2: 3}}}
    with pytest.raises(errors.OffsetOutOfRange, match="offset 9 is to be read next, and the log ends at 2"):
        planned(engine, **beyond)
    assert planned(engine, **beyond, fail_on_data_loss="false")[0] == (2, 2)
    assert planned(engine, snapshot=early)[2] == (3, 4)


def test_a_topic_that_is_gone_is_refused_or_left_out(
    engine: Engine, client: msgtx.Client, wide: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = unique("short")
    client.topics.create(name)
    with client.producer() as producer:
        producer.send(name, b"x").result(10)
    cut = client.snapshot([wide, name])
    client.topics.delete(name)
    with pytest.raises(errors.UnknownTopicOrPartition, match=name):
        planned(engine, subscribe=[wide, name], fail_on_data_loss=False)
    with pytest.raises(errors.UnknownTopicOrPartition, match=f"{name}-0: not there any more; failOnDataLoss=false"):
        planned(engine, snapshot=cut)
    assert len(planned(engine, snapshot=cut, fail_on_data_loss=False)) == 3
    assert caplog.messages == [f"{name}-0: not there any more, left out"]
    client.topics.create(name)
    with pytest.raises(errors.LogTruncated, match="offset 1 was committed, and the log is committed up to 0"):
        planned(engine, snapshot=cut)
    found = plan(engine, parse({"snapshot": cut, "fail_on_data_loss": False}))
    assert found.end.ends[TopicPartition(name, 0)] == 0


# Streams


def test_a_stream_goes_from_cut_to_cut(engine: Engine, client: msgtx.Client, wide: str) -> None:
    options = parse({"subscribe": wide}, streaming=True)
    first = begin(engine, options)
    assert first == latest(engine, options) == client.snapshot([wide])
    assert begin(engine, parse({"subscribe": wide, "startingOffsets": "earliest"}, streaming=True)).ends == {
        TopicPartition(wide, partition): 0 for partition in range(3)
    }
    some = {wide: {0: -1, 1: -2, 2: 3}}
    assert list(begin(engine, parse({"subscribe": wide, "startingOffsets": some}, streaming=True)).ends.values()) == [
        2,
        0,
        3,
    ]
    client.topics.alter(wide, partitions=4)
    with client.producer() as producer:
        for partition in (1, 1, 1, 3):
            producer.send(wide, b"new", partition=partition)
    second = latest(engine, options)
    found = between(engine, options, first, second)
    assert bounds(found) == {0: (2, 2), 1: (3, 6), 2: (4, 4), 3: (0, 1)}, "a new partition is read from its beginning"
    assert bounds(found.limited(2)) == {0: (2, 2), 1: (3, 4), 2: (4, 4), 3: (0, 1)}
    assert between(engine, options, first, second) == found, "a range that was planned is planned again"
    assert bounds(between(engine, options, found.limited(2).end, second)) == {0: (2, 2), 1: (4, 6), 2: (4, 4), 3: (1, 1)}


def test_a_stream_tells_what_it_has_lost(
    engine: Engine, client: msgtx.Client, wide: str, caplog: pytest.LogCaptureFixture
) -> None:
    options, lenient = (parse({"subscribe": wide, "failOnDataLoss": loss}, streaming=True) for loss in ("true", "false"))
    end = latest(engine, options)
    gone = Snapshot({**end.ends, TopicPartition("gone", 0): 3}, end.incarnation)
    with pytest.raises(errors.UnknownTopicOrPartition, match="gone-0"):
        between(engine, options, gone, end)
    assert between(engine, lenient, gone, end).size == 0
    new = Snapshot({TopicPartition(wide, 0): 0, TopicPartition(wide, 1): 0}, end.incarnation)
    delete_before(client, wide, 2, 1)
    with pytest.raises(errors.OffsetOutOfRange, match=f"{wide}-2: offset 0 was removed"):
        between(engine, options, new, end)
    assert bounds(between(engine, lenient, new, end)) == {0: (0, 2), 1: (0, 3), 2: (1, 4)}
    beyond = Snapshot({**end.ends, TopicPartition(wide, 0): 7}, end.incarnation)
    with pytest.raises(errors.LogTruncated, match="offset 7 was committed"):
        between(engine, options, end, beyond)
    assert len(caplog.records) == 2
    with pytest.raises(errors.IncarnationChanged):
        between(engine, options, Snapshot(end.ends, FOREIGN), end)


def test_a_replica_is_waited_for(engine: Engine, client: msgtx.Client, wide: str, make_database: Callable[..., str]) -> None:
    """A database that does not have the range stands for a replica that lags."""
    found = plan(engine, parse({"subscribe": wide}))
    await_replica(engine, found, timeout_ms=1)
    ahead = Plan(tuple(replace(each, end=each.end + 1) for each in found.ranges), found.incarnation)
    with pytest.raises(
        errors.DatabaseUnavailable, match=f"{wide}-0 up to 3 within replica_timeout_ms=1: it is at 2; 3 part"
    ):
        await_replica(engine, ahead, timeout_ms=1)
    other = Engine(make_database(), pool_size=1)
    try:
        with other.connection() as connection:
            change_incarnation(connection)
        with pytest.raises(errors.IncarnationChanged, match="not one database"):
            await_replica(other, found, timeout_ms=1)
    finally:
        other.close()


def test_an_offset_of_an_undecided_transaction_is_not_gone_on_from(engine: Engine, client: msgtx.Client, wide: str) -> None:
    with engine.connection() as connection:
        writer = Writer(connection)
        partition_id = plan(engine, parse({"subscribe": wide})).ranges[0].partition_id
        seal(connection, writer.name, "external", offset=("sealing", partition_id, 2))
        with pytest.raises(errors.UnstableOffset, match="'sealing'"):
            planned(engine, subscribe=wide, group="sealing")
