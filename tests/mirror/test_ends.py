"""The values that the two ends of a mirror exchange."""

from msgtx.mirror.ends import Lag, Portion, SourcePlace
from msgtx.types import TopicPartition


def test_a_portion_without_records_is_written_if_a_place_moves() -> None:
    # Aborted records were passed: the next portion must not read them again.
    passed = Portion("source", (), {TopicPartition("t", 0): SourcePlace(3, "7")}, {}, Lag(0, 0))
    assert not passed.is_empty
    assert Portion("source", (), {}, {}, Lag(0, 0)).is_empty
