"""What a cluster has of a mirror is read as it was written, and nothing else is taken for one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgtx.errors import ConfigError
from msgtx.mirror.ends import Lag, Progress, SourcePlace
from msgtx.mirror.kafka_stored import StoredMirror, TargetEnd, decode, encode
from msgtx.types import TopicPartition
from tests.refusals import refuses

PLACES = st.dictionaries(
    st.builds(TopicPartition, st.text(), st.integers(0, 1_000)),
    st.builds(SourcePlace, st.integers(0, 2**62), st.text(), st.text()),
)
ENDS = st.dictionaries(
    st.builds(TopicPartition, st.text(), st.integers(0, 1_000)), st.builds(TargetEnd, st.text(), st.integers(0, 2**62))
)
NUMBERS = st.integers(0, 2**62)
MIRROR = StoredMirror(Progress("source", {}, "1"), "run", "postgresql://host/db", "host", 1, 2, 3, 4, 5, Lag(0, 0))


@given(st.none() | st.text(), PLACES, ENDS, st.text(), NUMBERS, NUMBERS, st.none() | st.text())
def test_a_mirror_is_read_as_it_was_written(
    source: str | None,
    places: dict[TopicPartition, SourcePlace],
    ends: dict[TopicPartition, TargetEnd],
    text: str,
    count: int,
    lag: int,
    error: str | None,
) -> None:
    progress = Progress(source, places, str(count))
    mirror = StoredMirror(progress, text, text, text, count, 2, 3, 4, count, Lag(lag, lag), ends, error)
    assert decode(encode(mirror)) == mirror


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"[]", b"{}", b"null", b"7", encode(MIRROR).replace(b'"format":1', b'"format":2')]
)
def test_another_value_is_refused(value: bytes) -> None:
    with refuses(ConfigError):
        decode(value)


def test_a_value_is_small() -> None:
    """The whole progress goes with each transaction: Kafka's usual limit of 1 MB is enough for 5,000 partitions."""
    places = {
        TopicPartition("a-topic-with-an-ordinary-name", number): SourcePlace(10**12, "1234", "1234:56:789012345")
        for number in range(5_000)
    }
    ends = {at: TargetEnd("xJm7yZ0hS9u4Qk2cVb1NwA", 10**12) for at in places}
    progress = Progress("source", places, "1")
    stored = encode(StoredMirror(progress, "run", "address", "host", 1, 2, 3, 4, 5, Lag(0, 0), ends))
    assert len(stored) < 1_000_000
    assert json.loads(stored)["format"] == 1
