"""The offsets that users give to a transaction (internals: groups#committing-offsets)."""

from collections.abc import Mapping
from typing import Final, Protocol, runtime_checkable

from msgtx import arguments, errors
from msgtx.types import GroupMetadata, OffsetAndMetadata, TopicPartition

METADATA_BYTES: Final = 4096  # of an offset, Kafka's bound
Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]


@runtime_checkable
class OffsetSource(Protocol):
    """A consumer, as a transaction sees it."""

    def _transaction_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the positions that may be committed with a transaction."""
        ...

    def group_metadata(self) -> GroupMetadata:
        """Return the group that the positions belong to."""
        ...


def positions_of(
    offsets: OffsetSource | Offsets, group_metadata: GroupMetadata | str | None
) -> tuple[Mapping[TopicPartition, OffsetAndMetadata], GroupMetadata]:
    """Return the offsets to commit, and for whom. Raise as `offsets_of`, and `InvalidRequest` where no group is named."""
    if isinstance(offsets, OffsetSource):
        return offsets._transaction_offsets(), offsets.group_metadata()
    found = offsets_of(offsets)
    if group_metadata is None:
        raise errors.InvalidRequest(
            "offsets need the group they belong to: a name, or consumer.group_metadata()", name="group"
        )
    if isinstance(group_metadata, GroupMetadata):
        _check_member(group_metadata)
        return found, group_metadata
    return found, GroupMetadata(arguments.check_name("a group", group_metadata))


def _check_member(metadata: GroupMetadata) -> None:
    arguments.check_name("a group", metadata.group)
    arguments.whole("a generation", metadata.generation, least=-1, most=arguments.LARGEST_INT4)
    for what, name in (("a member", metadata.member_id), ("an instance", metadata.group_instance_id)):
        if name is not None:
            arguments.check_name(what, name)


def offsets_of(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets as they are stored. Raise `WrongType`, `InvalidRequest`, `OffsetMetadataTooLarge`."""
    given = {arguments.partition(tp): at for tp, at in arguments.mapping("offsets", offsets).items()}
    return {tp: _offset(tp, at) for tp, at in given.items()}


def _offset(topic_partition: TopicPartition, at: int | OffsetAndMetadata) -> OffsetAndMetadata:
    found = at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
    offset = arguments.whole(f"{topic_partition}: an offset", found.offset)
    metadata = arguments.text(f"{topic_partition}: the metadata of an offset", found.metadata)
    if (size := len(metadata.encode())) > METADATA_BYTES:
        raise errors.OffsetMetadataTooLarge(
            f"{topic_partition}: metadata of {size} bytes; at most {METADATA_BYTES} are stored",
            at=topic_partition,
            given=size,
            limit=METADATA_BYTES,
        )
    return OffsetAndMetadata(offset, metadata)
