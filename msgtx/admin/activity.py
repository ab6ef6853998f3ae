"""`client.admin.activity`: records and transactions over time."""

from typing import Final

from msgtx import arguments
from msgtx.database.pool import Engine
from msgtx.store.append.append import epoch_ms
from msgtx.store.monitoring import measure_activity
from msgtx.store.topics.topics import require_topics
from msgtx.types import ActivityPiece

MOST_PIECES: Final = 240  # of one answer: as many bars as a chart shows
MOST_MINUTES: Final = 7 * 24 * 60
MINUTE_MS: Final = 60_000


def activity(engine: Engine, minutes: int, *, pieces: int | None, topic: str | None) -> list[ActivityPiece]:
    """Return the pieces of the last minutes, the oldest first."""
    minutes = arguments.whole("minutes", minutes, least=1, most=MOST_MINUTES)
    if pieces is None:
        pieces = min(minutes, MOST_PIECES)
    pieces = arguments.whole("pieces", pieces, least=1, most=MOST_PIECES)
    topic = None if topic is None else arguments.topic(topic)
    with engine.connection() as connection:
        if topic is not None:
            require_topics(connection, [topic])
        found = measure_activity(connection, topic, pieces=pieces, piece_ms=minutes * MINUTE_MS // pieces)
    return [
        ActivityPiece(
            epoch_ms(one.piece_start),
            epoch_ms(one.piece_end),
            one.records,
            one.removed,
            one.committed,
            one.aborted,
            one.estimated,
        )
        for one in found
    ]
