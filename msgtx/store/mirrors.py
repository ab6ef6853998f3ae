"""Mirrors whose target this database is: their runs, and how far each has copied its source."""

import os
import socket
import uuid
from collections.abc import Sequence
from typing import Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array, TextArray
from msgtx.generated import calls
from msgtx.types import ProducerId

# A partition of the source, and the revision of the progress; without a topic: there is no progress yet.
PlaceRow = calls.TakeOverMirrorRow
# A partition of the source: topic, index, the next offset, the identities of its topic and of the row before that offset.
PlaceColumns = tuple[str, int, int, str, str]
MirrorRow = calls.DescribeMirrorsRow
MirrorPlaceRow = calls.MirrorPlacesRow
LONGEST_ADDRESS: Final = 2_000
LONGEST_ERROR: Final = 2_000  # characters


def take_over_mirror(
    connection: RawConnection, name: str, run_id: uuid.UUID, producer: ProducerId, *, is_new: bool, address: str
) -> list[PlaceRow]:
    """Make a run the only one of a mirror, and return its progress. `is_new`: it takes over from any other.

    Raise `MirrorFenced`.
    """
    client = (socket.gethostname(), os.getpid())
    return call(connection, calls.TAKE_OVER_MIRROR, name, run_id, is_new, *producer, address[:LONGEST_ADDRESS], *client)


def advance_mirror(
    connection: RawConnection,
    name: str,
    producer: ProducerId,
    revision: int,
    *,
    source: str,
    places: Sequence[PlaceColumns],
    records: int,
    lag: tuple[int, int],
) -> int:
    """Move the progress of a mirror in the SQL transaction that decides the records up to there.

    Return the new revision. `lag`: records and milliseconds. Raise `MirrorFenced`.
    """
    topics, partitions, offsets, topic_ids, row_ids = zip(*places, strict=True) if places else ((),) * 5
    ((advanced,),) = call(
        connection,
        calls.ADVANCE_MIRROR,
        name,
        *producer,
        revision,
        source,
        TextArray(topics),
        Int4Array(partitions),
        Int8Array(offsets),
        TextArray(topic_ids),
        TextArray(row_ids),
        records,
        *lag,
    )
    return int(advanced)


def note_mirror(
    connection: RawConnection,
    name: str,
    run_id: uuid.UUID,
    producer: ProducerId,
    lag: tuple[int, int],
    *,
    error: str | None = None,
) -> bool:
    """Note that a run lives, or the error by which it ends. Return whether the mirror is still of this run."""
    told = None if error is None else error[:LONGEST_ERROR].replace("\0", "").encode("utf-8", "replace").decode()
    ((is_ours,),) = call(connection, calls.NOTE_MIRROR, name, run_id, producer.producer_id, *lag, told)
    return bool(is_ours)


def describe_mirrors(connection: RawConnection, name: str | None = None) -> list[MirrorRow]:
    """Return the mirror of a name (None: all), in order of their names; an unknown one is absent."""
    return call(connection, calls.DESCRIBE_MIRRORS, name)


def mirror_places(connection: RawConnection, name: str) -> list[MirrorPlaceRow]:
    """Return how far a mirror has copied each partition of its source, in their order."""
    return call(connection, calls.MIRROR_PLACES, name)


def delete_mirror(connection: RawConnection, name: str) -> bool:
    """Forget a mirror with its progress. Return whether there was one."""
    ((there_was,),) = call(connection, calls.DELETE_MIRROR, name)
    return bool(there_was)


def flush_source(connection: RawConnection) -> None:
    """Flush the log of the source: what was read from it survives a crash there. A target must not have more."""
    call(connection, calls.FLUSH_LOG)
