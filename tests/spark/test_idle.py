"""A stream without records asks the database seldom, and finds the next record soon."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import msgtx
from msgtx.database.pool import Engine
from msgtx.spark_jobs.reading import idle
from msgtx.spark_jobs.reading.idle import Idle
from msgtx.spark_jobs.reading.stream import StreamReader
from msgtx.spark_jobs.source import SCHEMA
from tests.hooks import Hook
from tests.store.steps import unique

ALL = ReadAllAvailable()
SPARK_SECONDS = 0.01  # between two questions of Spark's
WHOLE = 5  # calls of a whole look


@dataclass
class World:
    """A stream on a clock of its own; Spark asks it again and again."""

    now: float = 0.0
    end: int = 0
    asked: int = 0
    idle: Idle = field(init=False)

    def __post_init__(self) -> None:
        self.idle = Idle(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def look(self, partitions: Collection[int]) -> Mapping[int, int]:
        self.asked += 1
        return dict.fromkeys(partitions, self.end)

    def run(self, seconds: float) -> float | None:
        """Ask so long; return when records were found, if there are some."""
        until = self.now + seconds
        while self.now < until:
            self.now += SPARK_SECONDS
            if self.idle.goes_on("start", self.look):
                continue
            self.asked += WHOLE
            if self.end:
                return self.now
            self.idle.begin("start", {1: 0})
        return None


@pytest.mark.parametrize("seconds", [10, 60, 600])
def test_an_idle_stream_asks_at_most_five_times_a_second(seconds: int) -> None:
    world = World()
    world.run(5)
    world.asked = 0
    world.run(seconds)
    assert world.asked <= 5 * seconds


@pytest.mark.parametrize(("idle_seconds", "late"), [(0.1, 0.03), (1.0, 0.07), (60.0, 0.3)])
def test_a_record_is_found_the_sooner_the_shorter_the_stream_was_idle(idle_seconds: float, late: float) -> None:
    world = World()
    world.run(idle_seconds)
    world.end, came = 1, world.now
    found = world.run(1)
    assert found is not None
    assert found - came <= late


def test_another_start_is_looked_at_whole() -> None:
    world = World()
    world.idle.begin("start", {1: 0})
    assert not world.idle.goes_on("another", world.look)
    world.idle.end()
    assert not world.idle.goes_on("start", world.look)
    assert world.asked == 0


@pytest.fixture
def reader(client: msgtx.Client, database_url: str) -> Iterator[StreamReader]:
    """A stream on all topics of a prefix."""
    prefix = unique("idle")
    client.topics.create(f"{prefix}-1")
    made = StreamReader({"url": database_url, "subscribePattern": f"{prefix}-.*", "startingOffsets": "earliest"}, SCHEMA)
    made.prefix = prefix  # type: ignore[attr-defined]
    yield made
    made.stop()


def test_an_idle_stream_asks_one_question_and_sees_what_comes(reader: StreamReader, client: msgtx.Client) -> None:
    """Also a topic that comes: at the next whole look."""
    prefix: str = reader.prefix  # type: ignore[attr-defined]
    start = reader.latestOffset(reader.initialOffset(), ALL)
    hook = Hook(_engine_of(reader))
    assert reader.latestOffset(start, ALL) == start
    assert hook.seen["check out"] == 1
    with client.producer() as producer:
        producer.send(f"{prefix}-1", b"1")
    end = reader.latestOffset(start, ALL)
    assert end["topics"] == {f"{prefix}-1": {"0": 1}}
    assert reader.latestOffset(end, ALL) == end
    client.topics.create(f"{prefix}-2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idle, "WHOLE_LOOK_SECONDS", 0.0)
        assert reader.latestOffset(end, ALL)["topics"] == {f"{prefix}-1": {"0": 1}, f"{prefix}-2": {"0": 0}}


def _engine_of(reader: StreamReader) -> Engine:
    assert reader._engine is not None
    return reader._engine
