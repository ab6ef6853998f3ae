"""Where a reset puts a group's offset: Kafka's targets, within the log. Source: Kafka's `ConsumerGroupCommand`."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, assert_never

from msgtx.errors import InvalidRequest
from msgtx.types import PartitionDescription, ShiftBy, TopicPartition

Word = Literal["earliest", "latest", "current"]
# A number is an offset; a timedelta goes back from now; a mapping (Kafka's file) names each partition's offset.
Target = Word | int | timedelta | datetime | ShiftBy | Mapping[TopicPartition, int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(target: Target, now: datetime) -> int | None:
    """Return the time of a target, in milliseconds since 1970 UTC; None for a target without a time."""
    if isinstance(target, timedelta):
        if target < timedelta():
            raise InvalidRequest(f"a duration of {target} does not go back in time", name="target")
        moment = now - min(target, now - _EPOCH)
    elif isinstance(target, datetime):
        if target.utcoffset() is None:
            raise InvalidRequest(f"{target.isoformat()} has no time zone: give it one, like UTC", name="target")
        moment = max(target, _EPOCH)
    else:
        return None
    return -((_EPOCH - moment) // timedelta(milliseconds=1))  # rounded up: at or after


def new_offset(
    partition: TopicPartition, target: Target, *, committed: int | None, ends: PartitionDescription, at_time: int | None
) -> tuple[int, str]:
    """Return the offset that a target means on a partition, and why it is another one than was asked for.

    `at_time`: the first record at or after `time_of` the target. `latest` is the last stable offset: records that are
    undecided now are still to be delivered. Raise `InvalidRequest` where nothing can be shifted.
    """
    latest, note = ends.last_stable_offset, ""
    match target:
        case "earliest":
            wanted = ends.log_start_offset
        case "latest":
            wanted = latest
        case "current":
            wanted = latest if committed is None else committed
            note = "no offset is committed: latest" if committed is None else ""
        case timedelta() | datetime():
            wanted = latest if at_time is None else at_time
            note = "no record is that young: latest" if at_time is None else ""
        case ShiftBy(offsets):
            if committed is None:
                raise InvalidRequest(f"{partition} has no committed offset that could be shifted", at=partition)
            wanted = committed + offsets
        case int():
            wanted = target
        case Mapping():
            wanted = target[partition]
        case _:
            assert_never(target)
    if wanted < ends.log_start_offset:
        return ends.log_start_offset, f"{wanted} is below the log start"
    if wanted > ends.log_end_offset:
        return ends.log_end_offset, f"{wanted} is above the log end"
    return wanted, note
