"""Consumer offsets that a transaction commits: what users hand over for them (internals: groups#committing-offsets)."""

from collections.abc import Mapping
from typing import Final, Protocol, runtime_checkable

from msgtx import errors
from msgtx.types import GroupMetadata, OffsetAndMetadata, TopicPartition

METADATA_BYTES: Final = 4096  # of an offset, Kafka's bound
Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]


@runtime_checkable
class OffsetSource(Protocol):
    """A consumer, as a transaction sees it."""

    def transaction_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the positions that may be committed with a transaction."""
        ...

    def group_metadata(self) -> GroupMetadata:
        """Return the group that the positions belong to."""
        ...


def positions_of(
    offsets: OffsetSource | Offsets, group_metadata: GroupMetadata | str | None
) -> tuple[Offsets, GroupMetadata]:
    """Return the offsets to commit, and for whom. Raise `InvalidRequest` where no group is named."""
    if isinstance(offsets, OffsetSource):
        return offsets.transaction_offsets(), offsets.group_metadata()
    if group_metadata is None:
        raise errors.InvalidRequest("offsets need the group they belong to: a name, or consumer.group_metadata()")
    return offsets, GroupMetadata(group_metadata) if isinstance(group_metadata, str) else group_metadata


def as_offset(topic_partition: TopicPartition, at: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """Return an offset as it is stored. Raise `InvalidRequest`, `OffsetMetadataTooLarge`."""
    found = at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
    if found.offset < 0:
        raise errors.InvalidRequest(f"{topic_partition}: an offset is not negative; this one is {found.offset}")
    if len(found.metadata.encode()) > METADATA_BYTES:
        raise errors.OffsetMetadataTooLarge(
            f"{topic_partition}: metadata of {len(found.metadata.encode())} bytes; at most {METADATA_BYTES} are stored"
        )
    return found
