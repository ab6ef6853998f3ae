"""`report`: what it counts, in which buckets; the chart, the page, the command."""

import base64
import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import click
import matplotlib.image
import pytest
from pyspark.sql import SparkSession

import msgtx
from msgtx import Snapshot, TopicPartition, errors
from msgtx.cli.spark.report import command
from msgtx.spark_jobs import report
from msgtx.spark_jobs.report import Bucket, GroupLag, RatesReport, TopicRates, run, width_of
from msgtx.spark_jobs.runtime.chart import COLOURS, GROUP_COLOURS, draw, scaled, told_bytes, told_count, told_width
from msgtx.spark_jobs.runtime.page import page
from tests.spark.jobs import Jobs
from tests.store.steps import unique

BEGIN = 1_763_760_000_000  # a full hour
MINUTE = 60_000
Run = Callable[..., RatesReport]


@pytest.fixture
def measured(spark: SparkSession, database_url: str) -> Run:
    return lambda *topics, **settings: run(spark, topics or None, url=database_url, **settings)


@pytest.fixture
def topic(client: msgtx.Client) -> str:
    name = unique("measured")
    client.topics.create(name, partitions=2)
    return name


@pytest.fixture
def jobs(database_url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Jobs:
    return Jobs(database_url, capfdbinary)


def send(client: msgtx.Client, topic: str, times: Iterable[int], *, partition: int = 0, value: bytes = b"x" * 100) -> None:
    with client.producer() as producer:
        for at in times:
            producer.send(topic, value, partition=partition, timestamp=at)


def commit(client: msgtx.Client, group: str, topic: str, *offsets: int) -> None:
    with client.consumer(group=group, enable_auto_commit=False) as consumer:
        positions = {TopicPartition(topic, partition): offset for partition, offset in enumerate(offsets)}
        consumer.assign(positions)
        consumer.commit(positions)


def counts(buckets: Iterable[Bucket]) -> list[tuple[int, int]]:
    return [((each.at - BEGIN) // MINUTE, each.records) for each in buckets]


# ── what is counted ──


def test_committed_records_are_counted_by_their_timestamps(client: msgtx.Client, topic: str, measured: Run) -> None:
    """I5: neither aborted records nor those of an open transaction."""
    send(client, topic, [BEGIN, BEGIN + 59_999, BEGIN + MINUTE])
    send(client, topic, [BEGIN + 10 * MINUTE, BEGIN], partition=1)
    with client.producer(transactional_id=topic) as producer:
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send(topic, b"x" * 100, partition=1, timestamp=BEGIN + 5 * MINUTE)
            producer.flush(10)
            end()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0, timestamp=BEGIN + 3 * MINUTE)
        producer.flush(10)
        found = measured(topic, bucket_ms=MINUTE)
        producer.abort_transaction()
    (rates,) = found.topics
    assert counts(rates.buckets) == [(0, 3), (1, 1), (5, 1), (10, 1)]
    assert (rates.topic, rates.partitions, rates.records) == (topic, 2, 6)
    assert 600 < rates.bytes == sum(each.bytes for each in rates.buckets) < 900
    assert (rates.first_at, rates.last_at) == (BEGIN, BEGIN + 10 * MINUTE)
    assert rates.records_per_second == pytest.approx(6 / (11 * 60))
    assert rates.bytes_per_second == pytest.approx(rates.bytes / (11 * 60))
    assert rates.peak_records_per_second == pytest.approx(3 / 60)
    assert found.bucket_ms == MINUTE
    assert {partition.topic for partition in found.end.ends} == {topic}


def test_however_ranges_are_divided_the_sums_are_the_same(
    client: msgtx.Client, topic: str, measured: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(client, topic, [BEGIN + 1_000 * n for n in range(500)])
    send(client, topic, [BEGIN + 700 * n for n in range(300)], partition=1)
    whole = measured(topic, bucket_ms=MINUTE).topics
    monkeypatch.setattr(report, "RECORDS_OF_A_TASK", 37)
    divided = measured(topic, bucket_ms=MINUTE).topics
    assert counts(divided[0].buckets) == counts(whole[0].buckets)
    assert divided[0].bytes == pytest.approx(whole[0].bytes, rel=0.01), "a divided row is rounded in each piece"


def test_what_lies_between_two_cuts_is_counted(client: msgtx.Client, topic: str, measured: Run) -> None:
    send(client, topic, [BEGIN])
    start = client.snapshot([topic])
    send(client, topic, [BEGIN + MINUTE] * 2)
    end = client.snapshot([topic])
    send(client, topic, [BEGIN + 2 * MINUTE] * 3)
    for settings, expected in (
        ({"start": start, "end": end}, [(1, 2)]),
        ({"start": start}, [(1, 2), (2, 3)]),
        ({"end": end}, [(0, 1), (1, 2)]),
    ):
        found = measured(topic, bucket_ms=MINUTE, **settings)
        assert counts(found.topics[0].buckets) == expected, settings
        assert found.start == settings.get("start")
    again = measured(bucket_ms=MINUTE, end=end)
    assert [each.topic for each in again.topics] == [topic], "the topics of the cut"


def test_a_group_is_behind_by_what_it_has_not_read_below_the_cut(client: msgtx.Client, topic: str, measured: Run) -> None:
    send(client, topic, [BEGIN + n * MINUTE for n in range(10)])
    send(client, topic, [BEGIN + n * MINUTE for n in range(4)], partition=1)
    behind, caught_up, elsewhere = unique("behind"), unique("caught-up"), unique("elsewhere")
    commit(client, behind, topic, 7, 4)
    commit(client, caught_up, topic, 10, 4)
    client.topics.create(elsewhere)
    commit(client, elsewhere, elsewhere, 0)
    found = {each.group: each for each in measured(topic, bucket_ms=MINUTE).groups}
    assert found.keys() == {behind, caught_up}
    assert counts(found[behind].buckets) == [(7, 1), (8, 1), (9, 1)]
    assert (found[behind].lag, found[behind].partitions, found[behind].oldest_at) == (3, 2, BEGIN + 7 * MINUTE)
    assert (found[behind].state, found[caught_up].lag, found[caught_up].oldest_at) == ("Empty", 0, None)
    assert measured(topic, groups=False).groups == []


def test_after_retention_a_log_and_a_lag_begin_where_it_does(client: msgtx.Client, topic: str, measured: Run) -> None:
    send(client, topic, [BEGIN + n * MINUTE for n in range(10)])
    group = unique("behind")
    commit(client, group, topic, 2, 0)
    client.admin.partitions.delete_records({TopicPartition(topic, 0): 6})
    found = measured(topic, bucket_ms=MINUTE)
    assert counts(found.topics[0].buckets) == [(6, 1), (7, 1), (8, 1), (9, 1)]
    assert found.groups[0].lag == 4


def test_buckets_of_an_automatic_width_are_round_and_few(client: msgtx.Client, topic: str, measured: Run) -> None:
    send(client, topic, [BEGIN + n * MINUTE for n in range(60 * 8)])
    found = measured(topic)
    assert found.bucket_ms == 5 * MINUTE
    assert [each.records for each in found.topics[0].buckets] == [5] * 96


def test_a_record_of_another_age_widens_the_buckets(client: msgtx.Client, topic: str, measured: Run) -> None:
    """It is neither the first nor the last, so its time cannot be guessed."""
    send(client, topic, [BEGIN, BEGIN - 10 * 365 * 24 * 60 * MINUTE, BEGIN + MINUTE])
    found = measured(topic)
    (rates,) = found.topics
    assert (rates.records, found.bucket_ms % 1_000) == (3, 0)
    assert (rates.last_at - rates.first_at) / found.bucket_ms <= report.MOST_BUCKETS
    with pytest.raises(errors.InvalidRequest, match="buckets"):
        measured(topic, bucket_ms=MINUTE)


@pytest.mark.parametrize(
    ("span", "width"),
    [(0, 1_000), (120_000, 1_000), (120_001, 2_000), (3_600_000, 30_000), (86_400_000, 900_000), (10**15, 604_800_000)],
)
def test_the_width_of_buckets_suits_the_span(span: int, width: int) -> None:
    assert width_of(span) == width


def test_nothing_is_no_failure(client: msgtx.Client, topic: str, measured: Run) -> None:
    (rates,) = measured(topic).topics
    assert rates == TopicRates(topic, 2, 0, 0, None, None, 0.0, 0.0, 0.0, [])
    nothing = measured(end=client.snapshot([]))
    assert (nothing.topics, nothing.groups) == ([], [])
    for found in (measured(topic), nothing):
        picture = draw(found)
        assert page(found, picture).count("<table>") == 1


def test_what_cannot_be_measured_says_why(client: msgtx.Client, topic: str, measured: Run) -> None:
    cut = client.snapshot([topic])
    with pytest.raises(errors.UnknownTopicOrPartition):
        measured("nowhere")
    with pytest.raises(errors.InvalidRequest, match="millisecond"):
        measured(topic, bucket_ms=0)
    with pytest.raises(errors.IncarnationChanged):
        measured(end=Snapshot(cut.ends, "0f8fad5b-d9cb-469f-a165-70867728950e"))


# ── the chart and the page ──


def made(topics: int = 3, groups: int = 2, *, names: Callable[[int], str] = "topic-{}".format) -> RatesReport:
    """A report with made-up figures."""

    def buckets(scale: int) -> list[Bucket]:
        return [Bucket(BEGIN + n * MINUTE, scale * (n % 7 + 1), 100 * scale * (n % 5 + 1)) for n in range(60)]

    made_topics = [
        TopicRates(names(n), 3, 240 * n, 18_000 * n, BEGIN, BEGIN + 59 * MINUTE, 1.0, 1.0, 1.0, buckets(n + 1))
        for n in range(topics)
    ]
    made_groups = [GroupLag(names(n), "Empty", 3, 1_000 * n, BEGIN, buckets(n)) for n in range(groups)]
    cut = Snapshot({TopicPartition("t", 0): 1}, "0f8fad5b-d9cb-469f-a165-70867728950e")
    return RatesReport(made_topics, made_groups, MINUTE, None, cut, BEGIN)


def has_colour(picture: bytes, colour: str) -> bool:
    """Whether a colour fills some of a picture."""
    pixels = (matplotlib.image.imread(io.BytesIO(picture))[:, :, :3] * 255).round().astype(int)
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return int((abs(pixels - wanted).max(axis=2) <= 1).sum()) > 100


def test_a_chart_has_a_colour_per_topic_and_group() -> None:
    picture = draw(made(3, 3))
    assert picture.startswith(b"\x89PNG")
    assert [has_colour(picture, colour) for colour in COLOURS] == [True] * 3 + [False] * 5
    assert has_colour(picture, GROUP_COLOURS[0])
    assert has_colour(picture, GROUP_COLOURS[1])
    assert not has_colour(picture, GROUP_COLOURS[2]), "one of the three is caught up"


@pytest.mark.parametrize("count", [0, 1, 8, 9, 40])
def test_a_chart_of_any_number_of_topics_and_groups_is_drawn(count: int) -> None:
    assert len(draw(made(count, count))) > 10_000


@pytest.mark.parametrize(
    "name", ["_hidden", "$a$ $b", "日本語", "x" * 249, "<script>alert(1)</script>", "a\\b{c}%", "&amp;"]
)
def test_any_name_is_shown_as_it_is(name: str) -> None:
    found = made(2, 2, names=lambda n: f"{name}{n}")
    picture = draw(found)
    html = page(found, picture)
    assert "<script" not in html
    assert html.count("<tr>") == 2 + 2 + 2


def test_a_page_stands_alone() -> None:
    found = made()
    picture = draw(found)
    html = page(found, picture)
    (source,) = re.findall(r'src="([^"]*)"', html)
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == picture
    assert "http" not in html.replace(source, "")
    assert "url(" not in html
    assert str(found.end) in html
    later = dataclasses.replace(found, start=found.end)
    assert page(later, picture).count(str(found.end)) == 2


def test_numbers_are_told_in_units() -> None:
    assert [told_bytes(size) for size in (0, 1023, 1024, 1536, 104 * 1024**2, 5e15)] == [
        "0 B", "1023 B", "1 KiB", "1.5 KiB", "104 MiB", "4.44 PiB",
    ]  # fmt: skip
    assert [told_count(count) for count in (0, 12_345, 123_456, 1e8)] == ["0", "12,345", "123.5 k", "100 M"]
    assert [told_width(width) for width in (1_500, 1_000, 900_000, 7_200_000, 604_800_000)] == [
        "1500 ms", "1 s", "15 min", "2 h", "7 d",
    ]  # fmt: skip
    assert scaled(0) == (1.0, "B")


# ── the command ──


def test_the_command_writes_a_chart_and_a_page(jobs: Jobs, client: msgtx.Client, topic: str, tmp_path: Path) -> None:
    send(client, topic, [BEGIN + n * MINUTE for n in range(10)])
    commit(client, unique("group"), topic, 3, 0)
    png, html = tmp_path / "chart.png", tmp_path / "page.html"
    files = ("--png", str(png), "--html", str(html))
    done = jobs.run(command, topic, *files, format="json")
    assert (done.code, done.err) == (0, f"wrote {png} and {html}\n")
    row = json.loads(done.out)
    assert (row["topics"][0]["records"], row["groups"][0]["lag"], row["from"]) == (10, 7, None)
    assert Snapshot.parse(row["to"]).ends.keys() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert png.read_bytes().startswith(b"\x89PNG")
    assert topic in html.read_text()
    table = jobs.run(command, topic, *files, "--no-groups", "--bucket", "60", format="table").out
    assert table.split()[:3] == ["topic", "partitions", "records"]
    client.snapshots.save(f"{topic}.cut", client.snapshot([topic]))
    send(client, topic, [BEGIN])
    done = jobs.run(command, *files, "--from", f"{topic}.cut", format="json")
    assert [each["records"] for each in json.loads(done.out)["topics"]] == [1]


def test_the_command_refuses_before_it_works(jobs: Jobs, topic: str, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="no folder"):
        jobs.run(command, topic, "--png", str(tmp_path / "nowhere" / "chart.png"))
    with pytest.raises(errors.SnapshotNotFound):
        jobs.run(command, topic, "--from", "nobody")
    with pytest.raises(click.UsageError):
        jobs.run(command, topic, "--bucket", "0")
