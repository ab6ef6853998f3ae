"""`client.search`: from a text to the places where somebody may want to go."""

import contextlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgtx import errors
from msgtx.admin.find import Search, look_back, newest
from msgtx.database.pool import Engine
from msgtx.database.standby import first_found, read_again
from msgtx.rules.names import similar_names
from msgtx.settings import StopSignal
from msgtx.store.find import BEHIND_ALL, FoundRow, find_names, recent_partitions
from msgtx.store.topics.topics import describe_topics
from msgtx.store.transactions.transactions import Decision, transaction_outcome
from msgtx.types import FoundRecord, Outcome, SearchAnswer, SearchHit, SearchKind, TopicPartition, TransactionId

MOST_STEPS: Final = 256  # of one search through records, each of some 500 rows: seconds
MOST_SEARCHED: Final = 10_000
MOST_NAMES: Final = 20  # of one kind
MOST_KNOWN: Final = 10_000  # names of one kind that an unknown one is compared with: some 10 µs each
PLACE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})(?:/([0-9]{1,9})(?:/([0-9]{1,18}))?|-([0-9]{1,9})(?:@([0-9]{1,18}))?)")


def search(
    engine: Engine,
    text: str,
    *,
    since_ms: int | None,
    limit: int,
    contents: bool,
    stop: StopSignal | None,
    progress: Callable[[int], None] | None,
) -> SearchAnswer:
    """Return the places that a text names, and then the records that hold it.

    Both are looked for on the standby of `read_url`; a place that it does not show, on the primary.
    """
    named = [*_place(engine, text), *_transaction(engine, text), *_names(engine, text)]
    records: list[FoundRecord] = []
    is_complete = True
    if contents:
        records, is_complete = _records(engine, text, since_ms=since_ms, limit=limit, stop=stop, progress=progress)
    hits = named + [_record(found) for found in records]
    return SearchAnswer(hits, [] if hits else _similar(engine, text), is_complete)


def _place(engine: Engine, text: str) -> Iterator[SearchHit]:
    """Yield the partition or the record of `topic/partition/offset`, or of `topic-partition@offset`."""
    if (match := PLACE.fullmatch(text)) is None:
        return
    topic, partition, offset = match[1], int(match[2] or match[4]), match[3] or match[5]

    def ids(source: Engine) -> Sequence[int]:
        known = read_again(source, lambda connection: describe_topics(connection, [topic])).get(topic)
        return () if known is None else known.partition_ids[partition : partition + 1]

    if not (found := first_found(engine, ids)):
        return
    place, (partition_id,) = TopicPartition(topic, partition), found

    def records(source: Engine) -> list[FoundRecord]:
        rows, _ = look_back(source, partition_id, int(offset) + 1, Search(offset=int(offset)))
        return newest(source, [(row, place, partition_id) for row in rows], 1)

    if offset is not None:
        with contextlib.suppress(errors.AuthorizationFailed):  # it may produce there: the topic is no secret
            if held := first_found(engine, records):
                yield from map(_record, held)
                return
    missing = "" if offset is None else f", with no record at offset {offset} for this role"
    yield SearchHit(SearchKind.PARTITION, str(place), f"partition {partition} of {topic}{missing}")


def _transaction(engine: Engine, text: str) -> Iterator[SearchHit]:
    try:
        name = TransactionId.parse(text)
    except errors.InvalidRequest:
        return

    def decisions(source: Engine) -> list[Decision]:
        found = read_again(source, lambda connection: transaction_outcome(connection, name))
        return [] if found.outcome is Outcome.UNKNOWN else [found]

    for decision in first_found(engine, decisions):
        by = "" if decision.decided_by is None else f" by {decision.decided_by}"
        yield SearchHit(SearchKind.TRANSACTION, str(name), f"transaction, {decision.outcome.lower()}{by}")


def _names(engine: Engine, text: str, most: int = MOST_NAMES) -> list[SearchHit]:
    rows = first_found(engine, lambda source: read_again(source, lambda connection: find_names(connection, text, most)))
    return [SearchHit(SearchKind(row.kind), row.name, row.told or "") for row in rows]


def _similar(engine: Engine, text: str) -> list[SearchHit]:
    known = {hit.name: hit for hit in _names(engine, "", MOST_KNOWN)}
    return [known[name] for name in similar_names(text, known)]


def _records(
    engine: Engine,
    text: str,
    *,
    since_ms: int | None,
    limit: int,
    stop: StopSignal | None,
    progress: Callable[[int], None] | None,
) -> tuple[list[FoundRecord], bool]:
    """Return records with this key or with these words in a JSON value, the last stored ones first; whether that is all.

    Each step goes through one piece of one partition; all partitions take turns, the last written one first.
    """
    asked, engine = Search(words=text, since_ms=since_ms, limit=limit), engine.reading
    try:
        known = read_again(engine, lambda connection: recent_partitions(connection, since_ms, MOST_SEARCHED))
        left = deque((row, BEHIND_ALL) for row in known)
    except errors.AuthorizationFailed:  # a role that may consume nothing
        return [], True
    hits: list[tuple[FoundRow, TopicPartition, int]] = []
    for _ in range(MOST_STEPS):
        if not left or (stop is not None and stop.is_set()):
            break
        place, before = left.popleft()
        rows, next_before = look_back(engine, place.partition_id, before, asked)
        hits += [(row, TopicPartition(place.topic, place.partition_index), place.partition_id) for row in rows]
        if next_before is not None and len(rows) < limit:
            left.append((place, next_before))
        if progress is not None:
            progress(len(hits))
    return newest(engine, hits, limit), not left


def _record(found: FoundRecord) -> SearchHit:
    of = "" if found.transactional_id is None else f" of {found.transactional_id}"
    name = f"{found.topic}-{found.partition}@{found.offset}"
    return SearchHit(SearchKind.RECORD, name, f"record, {found.outcome}{of}", found)
