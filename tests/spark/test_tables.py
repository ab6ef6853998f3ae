"""Tables and views of Spark SQL over `format("msgtx")`: their options reach SELECT and INSERT, or a refusal says how."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import msgtx
from tests.store.steps import unique


@dataclass(frozen=True)
class Place:
    """A topic of three partitions, and a table of the same name. `url` holds no password."""

    spark: SparkSession
    client: msgtx.Client
    url: str
    topic: str

    def run(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement; `{topic}` and `{url}` are this place's."""
        rows = self.spark.sql(statement.replace("{topic}", self.topic).replace("{url}", self.url)).collect()
        return [tuple(row) for row in rows]

    def make(self, options: str = "subscribe '{topic}', topic '{topic}'") -> None:
        self.run(f"CREATE TABLE {{topic}} USING msgtx OPTIONS (url '{{url}}', {options})")

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.client.read(self.client.snapshot([self.topic]))]


@pytest.fixture
def place(spark: SparkSession, client: msgtx.Client, database_url: str, tmp_path: Path) -> Iterator[Place]:
    address = sqlalchemy.make_url(database_url)
    passwords = tmp_path / "passwords"
    passwords.write_text(f"*:*:*:*:{address.password}\n")
    passwords.chmod(0o600)
    url = sqlalchemy.URL.create(
        "postgresql", address.username, None, address.host, address.port, address.database, {"passfile": str(passwords)}
    )
    topic = unique("tables").replace("-", "_")
    client.topics.create(topic, partitions=3, retention_ms=-1)
    yield Place(spark, client, url.render_as_string(), topic)
    spark.sql(f"DROP TABLE IF EXISTS {topic}")


def test_a_table_reads_its_topic_as_it_is_at_each_query(place: Place) -> None:
    place.make()
    assert place.run("SELECT count(*) FROM {topic}") == [(0,)]
    with place.client.producer() as producer:
        for at in range(6):
            producer.send(place.topic, b"%d" % at, partition=at % 3)
    assert place.run("SELECT partition, count(*) FROM {topic} GROUP BY 1 ORDER BY 1") == [(0, 2), (1, 2), (2, 2)]
    joined = "SELECT count(*) FROM {topic} one JOIN {topic} other USING (partition, offset) WHERE one.partition = 0"
    assert place.run(joined) == [(2,)]
    some = """SELECT count(*) FROM {topic} WITH (assign = '{"{topic}": [1]}', starting_offsets = '{"{topic}": {"1": 1}}')"""
    assert place.run(some) == [(1,)]


def test_an_insert_writes_the_columns_that_it_names(place: Place) -> None:
    place.make("subscribe '{topic}', topic '{topic}', includeHeaders true")
    place.run("INSERT INTO {topic} (key, value, partition) SELECT X'6b', encode(string(id), 'UTF-8'), 2 FROM range(3)")
    place.run("INSERT INTO {topic} (value, timestamp) VALUES (X'41', timestamp'2026-01-02 03:04:05Z'), (X'42', null)")
    found = list(place.client.read(place.client.snapshot([place.topic])))
    assert sorted((record.key, record.value) for record in found if record.key is not None) == [
        (b"k", b"0"), (b"k", b"1"), (b"k", b"2"),
    ]  # fmt: skip
    assert {record.partition for record in found if record.key is not None} == {2}
    assert [record.timestamp for record in found if record.value == b"A"] == [1_767_323_045_000]
    place.run("INSERT INTO {topic} SELECT * FROM {topic} WHERE key IS NOT NULL")
    assert len(place.values()) == 8


def test_an_insert_with_a_name_writes_once(place: Place) -> None:
    place.make()
    for version in ("1", "1", "2"):
        place.run(f"INSERT INTO {{topic}} WITH (txnAppId 'app', txnVersion {version}) (value) SELECT X'41'")
    assert place.values() == [b"A", b"A"]


def test_a_view_has_the_options_of_a_table(place: Place) -> None:
    """A view is one plan: it reads what the topic had when it was read first."""
    place.run("CREATE OR REPLACE TEMPORARY VIEW log USING msgtx OPTIONS (url '{url}', subscribe '{topic}', topic '{topic}')")
    place.run("INSERT INTO log (value) VALUES (X'41')")
    assert place.run("SELECT value FROM log") == [(b"A",)]
    place.run("INSERT INTO log (value) VALUES (X'42')")
    assert place.run("SELECT value FROM log") == [(b"A",)]
    assert sorted(place.values(), key=str) == [b"A", b"B"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE {topic} USING msgtx OPTIONS (subscripe 'x')", "the nearest known one is 'subscribe'"),
        (
            "CREATE TABLE {topic} USING msgtx OPTIONS (subscribe 'x', url 'postgresql://a:b@c/d')",
            "url holds a password, and a table would show it",
        ),
        ("CREATE TABLE {topic} USING msgtx OPTIONS (topic 'x') AS SELECT X'41' AS value", "then fill it by INSERT"),
        ("SELECT * FROM {topic}_listed", "only if CREATE TABLE lists no columns"),
        ("INSERT INTO {topic}_listed VALUES (X'41')", "a write needs an option"),
        ("INSERT OVERWRITE {topic}_good SELECT * FROM {topic}_good", "a log is not overwritten"),
        ("INSERT INTO {topic}_good VALUES (X'41')", "not enough data columns"),
        ("SELECT * FROM {topic}_good WITH (startingOffset = 'x')", "the nearest known one is 'startingOffsets'"),
    ],
)
def test_what_cannot_be_done_is_refused(place: Place, statement: str, message: str) -> None:
    """I16"""
    place.run("CREATE TABLE {topic}_listed (value BINARY) USING msgtx OPTIONS (subscribe '{topic}', topic '{topic}')")
    place.run("CREATE TABLE {topic}_good USING msgtx OPTIONS (url '{url}', subscribe '{topic}')")
    with pytest.raises(PySparkException, match=message):
        place.run(statement)
    assert place.values() == []
    for name in ("listed", "good"):
        place.run(f"DROP TABLE {{topic}}_{name}")


def test_filters_of_one_query_do_not_reach_another(place: Place) -> None:
    """Spark 4.3 would give the pruned plan of one scan to the other scans of a relation (decision 0157)."""
    place.make()
    with place.client.producer() as producer:
        for at in range(3):
            producer.send(place.topic, b"%d" % at, partition=at)
    pushing = "spark.sql.python.filterPushdown.enabled"
    place.spark.conf.set(pushing, "true")
    try:
        frame = place.spark.table(place.topic)
        assert frame.where("partition = 0").count() == 1
        assert frame.count() == 3
        both = frame.where("partition = 0").union(frame.where("partition = 1"))
        assert sorted(row.partition for row in both.collect()) == [0, 1]
    finally:
        place.spark.conf.unset(pushing)
