"""`audit`: sound logs are found sound, each planted defect is named and counted where it belongs."""

import dataclasses

import click
import pytest
from pyspark.sql import SparkSession

import msgtx
from msgtx import errors
from msgtx.admin.verify import RULES
from msgtx.cli.spark.audit import command
from msgtx.spark_jobs.audit import KIND_OF, KINDS, AuditReport, TopicAudit, run
from msgtx.store.groups.groups import commit_offsets
from msgtx.types import GroupMetadata, OffsetAndMetadata, Snapshot, TransactionId
from tests.databases import Connection
from tests.spark.jobs import Jobs
from tests.store.steps import Writer, plain, unique

NONE = dict.fromkeys((*KINDS, "other"), 0)


@dataclasses.dataclass
class Place:
    """A topic of two partitions, and the audit's report on it."""

    spark: SparkSession
    url: str
    connection: Connection
    topic: str
    partitions: list[int]

    def report(self, **settings: int) -> AuditReport:
        return run(self.spark, [self.topic], url=self.url, **settings)

    def counts(self) -> dict[str, int]:
        (found,) = self.report().topics
        return {name: getattr(found, name) for name in NONE if getattr(found, name)}

    def change(self, statement: str, *arguments: object) -> None:
        """Run a statement as the owner of the tables."""
        assert self.connection.execute(statement, arguments).rowcount > 0, statement

    def batch(self, changes: str, offset: int) -> None:
        self.change(
            f"update msgtx.record_batch set {changes} where partition_id = %s and base_offset = %s",
            self.partitions[0],
            offset,
        )


@pytest.fixture
def place(spark: SparkSession, client: msgtx.Client, connection: Connection, database_url: str) -> Place:
    name = unique("audited")
    client.topics.create(name, partitions=2)
    rows = connection.execute(
        "select partition_id from msgtx.partition p join msgtx.topic t using (topic_id) where t.name = %s order by 1", [name]
    ).fetchall()
    return Place(spark, database_url, connection, name, [partition_id for (partition_id,) in rows])


@pytest.fixture
def jobs(spark: SparkSession, database_url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Jobs:
    return Jobs(database_url, capfdbinary)


def of(name: TransactionId) -> str:
    return (
        f"producer_id = {name.producer_id} and producer_epoch = {name.producer_epoch}"
        f" and transaction_number = {name.transaction_number}"
    )


def fill(place: Place, rows: int = 10) -> list[TransactionId]:
    """Write transactions over both partitions, every fourth one is aborted, with a plain batch between. Returns names."""
    writer, names = Writer(place.connection), []
    for index in range(rows):
        for partition in place.partitions:
            writer.send(partition, b"a", b"b")
        names.append(writer.abort() if index % 4 == 3 else writer.commit())
        plain(place.connection, place.partitions[0], b"c")
    return names


# ── sound logs ──


def test_a_sound_log_is_found_sound_however_it_is_divided(place: Place) -> None:
    fill(place)
    commit_offsets(place.connection, {GroupMetadata(unique("g")): {place.partitions[0]: OffsetAndMetadata(20)}})
    whole = place.report()
    assert whole.topics == [TopicAudit(place.topic, 2, 30, 50, **NONE)]
    assert (whole.transactions, whole.group_offsets, whole.offsets_behind) == (10, 1, 0)
    assert (whole.violations_found, whole.violations, whole.records) == (0, [], 50)
    assert {partition.topic for partition in whole.snapshot.ends} == {place.topic}
    for length in (30, 120):
        divided = place.report(records_of_a_task=length)
        assert divided.pieces > whole.pieces
        assert dataclasses.replace(divided, pieces=whole.pieces) == whole


def test_an_empty_topic_and_no_topic_are_sound(place: Place) -> None:
    assert place.report().topics == [TopicAudit(place.topic, 2, 0, 0, **NONE)]
    nothing = run(place.spark, [], url=place.url)
    assert (nothing.topics, nothing.records, nothing.violations) == ([], 0, [])


def test_all_topics_are_audited_when_none_is_named(place: Place, client: msgtx.Client) -> None:
    fill(place, 2)
    found = {topic.topic: topic for topic in run(place.spark, url=place.url).topics}
    assert found.keys() == {*client.topics.list()}
    assert found[place.topic].records == 10


def test_an_open_transaction_and_what_it_holds_back_are_sound(place: Place) -> None:
    open_one, behind = Writer(place.connection), Writer(place.connection)
    open_one.send(place.partitions[0], b"open")
    for partition in place.partitions:
        behind.send(partition, b"behind")
    behind.commit()
    report = place.report()
    assert [*report.snapshot.ends.values()] == [0, 0]
    assert report.violations_found == 0
    open_one.abort()


def test_after_retention_and_compaction_a_log_is_sound(place: Place, client: msgtx.Client) -> None:
    fill(place)
    client.admin.partitions.delete_records({msgtx.TopicPartition(place.topic, 0): 8})
    assert place.report(records_of_a_task=3).violations_found == 0, "before the sweep"
    client.sweep()
    commit_offsets(place.connection, {GroupMetadata(unique("g")): {place.partitions[0]: OffsetAndMetadata(2)}})
    report = place.report(records_of_a_task=3)
    assert (report.violations_found, report.offsets_behind) == (0, 1)


# ── planted defects ──


def test_a_hole_in_the_offsets_is_counted_and_named(place: Place) -> None:
    for value in (b"a", b"b", b"c"):
        plain(place.connection, place.partitions[0], value)
    place.batch("base_offset = 7, last_offset = 7", 2)
    report = place.report()
    assert place.counts() == {"offsets": 1}
    (found,) = report.violations
    assert (found.topic, found.partition, found.offset, found.check, found.promise) == (
        place.topic, 0, 7, "offsets_dense", "I2",
    )  # fmt: skip
    assert report.violations_found == 1


def test_a_hole_between_two_tasks_is_found(place: Place) -> None:
    for value in (b"a", b"b", b"c"):
        plain(place.connection, place.partitions[0], value)
    place.batch("base_offset = 7, last_offset = 7", 2)
    for length in (10, 17):
        assert [one.offset for one in place.report(records_of_a_task=length).violations] == [7]


def test_an_offset_that_is_there_twice_is_counted(place: Place) -> None:
    plain(place.connection, place.partitions[0], b"a", b"b", b"c")
    plain(place.connection, place.partitions[0], b"d")
    place.batch("last_offset = 3, record_count = 4", 0)
    assert place.counts()["offsets"] >= 1
    assert "offsets_dense" in {one.check for one in place.report().violations}


def test_a_batch_that_is_stored_twice_is_a_duplicate(place: Place) -> None:
    """I1: same producer, epoch and sequence, also with tasks between the two."""
    writer = Writer(place.connection)
    for value in (b"a", b"b", b"c"):
        writer.send(place.partitions[0], value)
    writer.commit()
    place.batch("base_sequence = 0, last_sequence = 0", 2)
    for length in (1, 1_000):
        report = place.report(records_of_a_task=length)
        assert [one.offset for one in report.violations if one.check == "stored_twice"] == [2]
        assert report.topics[0].duplicates == 1


def test_a_sequence_out_of_order_is_counted(place: Place) -> None:
    writer = Writer(place.connection)
    for value in (b"a", b"b", b"c"):
        writer.send(place.partitions[0], value)
    writer.commit()
    place.batch("base_sequence = 9, last_sequence = 9", 1)
    assert place.counts().keys() == {"sequences"}


def test_a_committed_transaction_that_lacks_a_batch_is_torn(place: Place) -> None:
    """I6: also when the offsets do not show the hole, at the end of the log."""
    names = fill(place, 2)
    place.change(
        "delete from msgtx.record_batch where partition_id = %s and transaction_number = %s",
        place.partitions[1],
        names[1].transaction_number,
    )
    assert place.counts().keys() == {"torn"}
    assert {one.check for one in place.report().violations} >= {"span_start", "span_end"}


def test_a_transaction_on_both_sides_of_the_cut_is_torn(place: Place) -> None:
    """I15."""
    name = fill(place, 1)[0]
    place.change(f"update msgtx.transaction_decision set last_offsets = '{{1, 7}}' where {of(name)}")
    assert "torn" in {one.check for one in place.report().violations}
    assert place.counts().keys() == {"torn"}


def test_offsets_of_groups_beyond_the_log_are_counted(place: Place) -> None:
    plain(place.connection, place.partitions[0], b"a", b"b")
    group = unique("group")
    commit_offsets(place.connection, {GroupMetadata(group): {place.partitions[0]: OffsetAndMetadata(2)}})
    assert place.counts() == {}
    place.change("update msgtx.group_offset set committed_offset = 3 where partition_id = %s", place.partitions[0])
    assert place.counts() == {}  # any number, without a member that has read up to there
    place.change("update msgtx.group_offset set member_id = 'm' where partition_id = %s", place.partitions[0])
    assert place.counts() == {"group_offsets": 1}
    assert group in place.report().violations[0].expected


def test_the_rest_is_counted_as_other(place: Place) -> None:
    plain(place.connection, place.partitions[0], b"a")
    place.batch("max_timestamp = max_timestamp - 1, timestamps = array[max_timestamp]", 0)
    assert place.counts() == {"other": 1}


def test_every_violation_is_counted_and_the_first_ones_are_named(place: Place) -> None:
    place.connection.execute(
        "insert into msgtx.record_batch (partition_id, base_offset, last_offset, appended_at, max_timestamp, record_count,"
        " byte_size, \"values\") select %s, 2 * n, 2 * n, clock_timestamp(), 0, 1, 24, '{a}'"
        " from generate_series(0, 1500) n",
        [place.partitions[0]],
    )
    report = place.report(records_of_a_task=700)
    assert (report.violations_found, report.topics[0].offsets) == (1500, 1500)
    assert [one.offset for one in report.violations] == [2 * n for n in range(1, 1001)]


def test_every_kind_names_rules_of_verify() -> None:
    assert set(KIND_OF) <= set(RULES)
    assert sum(map(len, KINDS.values())) == len(KIND_OF), "a rule belongs to one kind"
    assert {field.name for field in dataclasses.fields(TopicAudit)} >= {*KINDS, "other"}


# ── what goes wrong ──


def test_what_cannot_be_audited_says_why(place: Place) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition):
        run(place.spark, ["nowhere"], url=place.url)
    with pytest.raises(errors.InvalidRequest, match="at least one record"):
        place.report(records_of_a_task=0)


# ── the command ──


def test_the_command_ends_with_0_for_a_sound_topic_and_with_1_for_another(place: Place, jobs: Jobs) -> None:
    fill(place)
    done = jobs.run(command, place.topic)
    assert (done.code, done.err) == (0, "")
    (row,) = done.rows
    assert row["topics"] == [{"topic": place.topic, "partitions": 2, "batches": 30, "records": 50, **NONE}]
    assert (row["violations_found"], row["violations"]) == (0, [])
    assert {partition.topic for partition in Snapshot.parse(row["snapshot"]).ends} == {place.topic}
    table = jobs.run(command, place.topic, "--records-of-a-task", "5", format="table").out
    assert table.split()[:10] == [
        "topic", "partitions", "batches", "records", "offsets", "duplicates", "sequences", "torn", "group_offsets", "other",
    ]  # fmt: skip
    place.batch("base_sequence = 77, last_sequence = 78", 5)
    done = jobs.run(command, place.topic, format="table")
    assert done.code == 1
    assert done.out.startswith("topic")
    assert "base" in done.out or "sequence" in done.out


@pytest.mark.parametrize("arguments", [("--records-of-a-task", "0"), ("--nonsense",)])
def test_wrong_usage_is_refused(jobs: Jobs, arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        jobs.run(command, *arguments)
