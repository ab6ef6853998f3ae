"""Records before they are stored: how they become a row of the log.

A row holds the records of one partition and one append, column by column; `BatchColumns` is that row on the wire. A column
that every record would leave empty is absent.
"""

from collections.abc import Collection, Sequence
from time import time_ns
from typing import Any, Final

from msgtx import errors, units
from msgtx.config import ROW_BYTES, ROW_RECORDS
from msgtx.database.wire import BatchColumns
from msgtx.rules.record import HeaderPairs, as_milliseconds, counted_bytes, record_bytes

Producer = tuple[int | None, int | None]  # id and epoch, or nothing
DELIVER_AT: Final = "msgtx.deliver-at"  # a header: when share groups deliver a record, in milliseconds since 1970 UTC
DELIVERED_BEFORE: Final = 10**14  # more digits have no effect in the database


def milliseconds_now() -> int:
    """Return this machine's time, in milliseconds since 1970 UTC."""
    return time_ns() // 1_000_000


class OpenRow:
    """A row that records are added to. `size`: in bytes, as those count that add to it; `created_ms`: its time."""

    __slots__ = ("created_ms", "headers", "keys", "size", "timestamps", "values")

    def __init__(self, created_ms: int | None = None) -> None:
        self.created_ms = milliseconds_now() if created_ms is None else created_ms
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.timestamps: list[int] | None = None  # None: all are `created_ms`
        self.headers: dict[int, HeaderPairs] | None = None  # by the record's place
        self.size = 0

    def takes(self, size: int) -> bool:
        """Return whether a record of so many bytes goes into this row, not into the next one."""
        return not self.values or (self.size + size <= ROW_BYTES and len(self.values) < ROW_RECORDS)

    @property
    def is_full(self) -> bool:
        """Whether the next record goes into another row."""
        return self.size >= ROW_BYTES or len(self.values) >= ROW_RECORDS

    def add(self, value: bytes | None, key: bytes | None, timestamp: int | None, headers: HeaderPairs, *, size: int) -> None:
        """Add a record."""
        self.values.append(value)
        self.keys.append(key)
        if timestamp is not None or self.timestamps is not None:
            self.add_timestamp(self.created_ms if timestamp is None else timestamp)
        if headers:
            self.add_headers(headers)
        self.size += size

    def add_timestamp(self, timestamp: int) -> None:
        """Give the record that was just added a time of its own."""
        if self.timestamps is None:
            self.timestamps = [self.created_ms] * (len(self.values) - 1)
        self.timestamps.append(timestamp)

    def add_headers(self, headers: HeaderPairs) -> None:
        """Give the record that was just added headers."""
        if self.headers is None:
            self.headers = {}
        self.headers[len(self.values) - 1] = headers

    def extend(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int | None] | None = None,
        headers: Sequence[HeaderPairs] | None = None,
        *,
        size: int,
    ) -> None:
        """Add records by columns; None: no record has any."""
        before = len(self.values)
        self.values.extend(values)
        self.keys.extend([None] * len(values) if keys is None else keys)
        if timestamps is not None or self.timestamps is not None:
            known = [self.created_ms] * before if self.timestamps is None else self.timestamps
            given = [None] * len(values) if timestamps is None else timestamps
            self.timestamps = known + [self.created_ms if at is None else at for at in given]
        for at, pairs in enumerate(headers or (), before):
            if pairs:
                self.headers = self.headers or {}
                self.headers[at] = pairs
        self.size += size

    def record_bytes(self, at: int) -> int:
        """Return the size of a record, as the database counts it."""
        headers = (self.headers or {}).get(at, ())
        return counted_bytes(record_bytes(self.values[at], self.keys[at], headers), headers)

    def time_of(self, at: int) -> int:
        """Return a record's timestamp."""
        return self.created_ms if self.timestamps is None else self.timestamps[at]

    def stored_as(
        self,
        partition_id: int,
        producer: Producer = (None, None),
        *,
        transaction_number: int | None = None,
        base_sequence: int | None = None,
        without: Collection[int] = (),
    ) -> BatchColumns:
        """Return the row to store, without the records at some places."""
        keys, values, timestamps, headers = self.keys, self.values, self.timestamps, self.headers
        if without:
            kept = [at for at in range(len(values)) if at not in without]
            keys, values = [keys[at] for at in kept], [values[at] for at in kept]
            timestamps = None if timestamps is None else [timestamps[at] for at in kept]
            headers = None if headers is None else {new: headers[old] for new, old in enumerate(kept) if old in headers}
        pairs = None if not headers else [headers.get(at, ()) for at in range(len(values))]
        return BatchColumns(
            partition_id=partition_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            transaction_number=transaction_number,
            base_sequence=base_sequence,
            max_timestamp=max(timestamps) if timestamps else self.created_ms,
            keys=keys if any(key is not None for key in keys) else None,
            values=values,
            timestamps=timestamps if timestamps and len(set(timestamps)) > 1 else None,
            header_counts=None if pairs is None else [len(each) for each in pairs],
            header_keys=None if pairs is None else [name for each in pairs for name, _ in each],
            header_values=None if pairs is None else [content for each in pairs for _, content in each],
        )


# ── when share groups deliver it ──


def delivered_later(headers: HeaderPairs, deliver_at: Any, delay_ms: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers that say when share groups deliver the record. Raise `TypeError`, `ConfigError`, `InvalidRequest`."""
    if deliver_at is not None and delay_ms is not None:
        raise errors.InvalidRequest(
            "a record is delivered at a time (deliver_at) or after one (delay_ms), not both", name="deliver_at"
        )
    if deliver_at is None:
        deliver_at = milliseconds_now() + max(0, units.milliseconds("delay_ms", delay_ms))
    at = as_milliseconds(deliver_at)
    if at >= DELIVERED_BEFORE:
        raise errors.InvalidRequest(
            f"a record is delivered before the year 5138, not at {at} ms since 1970 UTC", name="deliver_at"
        )
    return (*(each for each in headers if each[0] != DELIVER_AT), (DELIVER_AT, b"%d" % at))
