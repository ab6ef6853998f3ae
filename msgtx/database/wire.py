"""How values travel to PostgreSQL: binary parameters for the arrays that batches are made of.

psycopg's general list dumper asks each element for its type; a batch knows the types of its columns. One join per array
makes encoding several times faster.
"""

import itertools
import json
import re
import select
import struct
import time
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Loader, PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.types.numeric import Int8
from psycopg.waiting import Wait

from msgtx import errors

INT4, INT8, TEXT, BYTEA = 23, 20, 25, 17
INT4_ARRAY, INT8_ARRAY, TEXT_ARRAY, BYTEA_ARRAY = 1007, 1016, 1009, 1001
NULL = b"\xff\xff\xff\xff"
EMPTY_ARRAY = struct.Struct(">iiI")
LARGE_BYTES: Final = 256  # of an item: one copy less saves more than a longer list costs (decision 0192)
ARRAY_HEADER = struct.Struct(">iiIii")
# Lengths below this are looked up, not packed: nearly every key and value.
LENGTHS = [length.to_bytes(4, "big") for length in range(1 << 16)]
# PostgreSQL takes no message and holds no value of 1 GiB (MaxAllocSize). It ends the connection that sent one, like any
# other lost connection: the call would be repeated. The rest is for small arguments beside this one.
ARGUMENT_BYTES: Final = 0x3FFFFFFF - 64 * 1024


# A field of a composite value: its type, its length, its data; −1 for NULL.
FIELD = struct.Struct(">ii")
INT4_FIELD = struct.Struct(">iii")
INT8_FIELD = struct.Struct(">iiq")
SIX_NUMBERS = struct.Struct(">iiiiiiqiiiiiqiiqiiq")
NO_BYTEAS, NO_INT8S, NO_INT4S, NO_TEXTS = (
    (FIELD.pack(oid, -1),) for oid in (BYTEA_ARRAY, INT8_ARRAY, INT4_ARRAY, TEXT_ARRAY)
)


class BatchColumns(NamedTuple):
    """One row for `record_batch`, as columns; None where a column is absent. Times are milliseconds."""

    partition_id: int
    producer_id: int | None
    producer_epoch: int | None
    transaction_number: int | None
    base_sequence: int | None
    max_timestamp: int
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    timestamps: Sequence[int] | None = None
    header_counts: Sequence[int] | None = None
    header_keys: Sequence[str] | None = None
    header_values: Sequence[bytes | None] | None = None


class Int8Array(tuple[int, ...]):
    """A `bigint[]` parameter."""

    __slots__ = ()


class Int4Array(tuple[int | None, ...]):
    """An `int[]` parameter; None is NULL."""

    __slots__ = ()


class TextArray(tuple[str | None, ...]):
    """A `text[]` parameter; None is NULL."""

    __slots__ = ()


class ByteaArray(tuple[bytes | None, ...]):
    """A `bytea[]` parameter; None is NULL."""

    __slots__ = ()


class BatchArray(NamedTuple):
    """A `msgtx.batch[]` parameter. `type_oid` is that of `msgtx.batch` in this database."""

    type_oid: int
    batches: Sequence[BatchColumns]


def _length(data: bytes) -> bytes:
    size = len(data)
    return LENGTHS[size] if size < len(LENGTHS) else size.to_bytes(4, "big")


def _header(oid: int, count: int, *, has_nulls: bool) -> bytes:
    return ARRAY_HEADER.pack(1, int(has_nulls), oid, count, 1) if count else EMPTY_ARRAY.pack(0, 0, oid)


def _bytea_array(items: Sequence[bytes | None], oid: int = BYTEA) -> list[bytes]:
    """Return the binary form of a `bytea[]` (or, with `oid`, of another array of byte strings), in parts."""
    if None in items:
        found = [_header(oid, len(items), has_nulls=True)]
        for item in items:
            found.extend((NULL,) if item is None else (_length(item), item))
        return found
    # Two slices, in C: a batch has thousands of items.
    parts: list[Any] = [b""] * (2 * len(items) + 1)
    parts[0] = _header(oid, len(items), has_nulls=False)
    try:
        parts[1::2] = map(LENGTHS.__getitem__, map(len, items))  # type: ignore[arg-type]  # no None here
    except IndexError:
        parts[1::2] = [_length(item) for item in items]  # type: ignore[arg-type]  # as above
    parts[2::2] = items
    return parts


def encode_bytea_array(items: Sequence[bytes | None], *, oid: int = BYTEA) -> bytes:
    """Return the binary form of a `bytea[]` (or, with `oid`, of another array of byte strings)."""
    return b"".join(_bytea_array(items, oid))


def encode_text_array(items: Sequence[str | None], encoding: str = "utf-8") -> bytes:
    """Return the binary form of a `text[]`, for a session with this `client_encoding`."""
    return encode_bytea_array([None if item is None else item.encode(encoding) for item in items], oid=TEXT)


def encode_int8_array(items: Sequence[int]) -> bytes:
    """Return the binary form of a `bigint[]`."""
    body = struct.pack(">" + "iq" * len(items), *chain.from_iterable(zip(repeat(8), items, strict=False)))
    return _header(INT8, len(items), has_nulls=False) + body


def encode_int4_array(items: Sequence[int | None]) -> bytes:
    """Return the binary form of an `int[]`."""
    if None in items:
        parts = [NULL if item is None else struct.pack(">ii", 4, item) for item in items]
        return b"".join([_header(INT4, len(items), has_nulls=True), *parts])
    body = struct.pack(">" + "ii" * len(items), *chain.from_iterable(zip(repeat(4), items, strict=False)))
    return _header(INT4, len(items), has_nulls=False) + body


def _numbers(batch: BatchColumns) -> bytes:
    """Return the number of fields, and those of the first columns."""
    values = batch[:6]
    if None not in values:  # of a transaction: in one go
        a, b, c, d, e, f = values
        return SIX_NUMBERS.pack(12, INT4, 4, a, INT8, 8, b, INT4, 4, c, INT8, 8, d, INT8, 8, e, INT8, 8, f)
    found = [len(batch).to_bytes(4, "big")]
    for oid, value in zip((INT4, INT8, INT4, INT8, INT8, INT8), values, strict=True):
        if value is None:
            found.append(FIELD.pack(oid, -1))
        else:
            found.append((INT4_FIELD if oid == INT4 else INT8_FIELD).pack(oid, 4 if oid == INT4 else 8, value))
    return b"".join(found)


def _array(oid: int, data: bytes) -> tuple[bytes, ...]:
    return FIELD.pack(oid, len(data)), data


def _byteas(items: Sequence[bytes | None]) -> list[bytes]:
    parts = _bytea_array(items)
    if len(parts[-1]) < LARGE_BYTES:  # the last one stands for all
        parts = [b"".join(parts)]
    parts.insert(0, FIELD.pack(BYTEA_ARRAY, sum(map(len, parts))))
    return parts


def encode_batch(b: BatchColumns, encoding: str = "utf-8") -> list[bytes]:
    """Return the binary form of one `msgtx.batch`, in parts: number of fields, then type, length and data of each."""
    return [
        _numbers(b),
        *(NO_BYTEAS if b.keys is None else _byteas(b.keys)),
        *_byteas(b.values),
        *(NO_INT8S if b.timestamps is None else _array(INT8_ARRAY, encode_int8_array(b.timestamps))),
        *(NO_INT4S if b.header_counts is None else _array(INT4_ARRAY, encode_int4_array(b.header_counts))),
        *(NO_TEXTS if b.header_keys is None else _array(TEXT_ARRAY, encode_text_array(b.header_keys, encoding))),
        *(NO_BYTEAS if b.header_values is None else _byteas(b.header_values)),
    ]


class _BinaryDumper(Dumper):
    format = pq.Format.BINARY

    @property
    def encoding(self) -> str:
        """The session's, which need not be ours: `msgtx.protocol` works on the user's."""
        return "utf-8" if self.connection is None else self.connection.info.encoding


class _ArrayDumper(_BinaryDumper):
    def encode(self, obj: Any) -> Buffer:
        """Return the binary form."""
        raise NotImplementedError

    def dump(self, obj: Any) -> Buffer:
        """Return the binary form. Raise `RecordTooLarge` if PostgreSQL cannot take it."""
        data = self.encode(obj)
        if len(data) > ARGUMENT_BYTES:
            raise errors.RecordTooLarge(
                f"a call with an argument of {len(data)} bytes: PostgreSQL takes at most {ARGUMENT_BYTES}; send less at once"
            )
        return data


class _BatchArrayDumper(_ArrayDumper):
    def encode(self, obj: BatchArray) -> Buffer:
        parts = [_header(obj.type_oid, len(obj.batches), has_nulls=False)]
        encoding = self.encoding
        for batch in obj.batches:
            encoded = encode_batch(batch, encoding)
            parts.append(sum(map(len, encoded)).to_bytes(4, "big"))
            parts.extend(encoded)
        return b"".join(parts)


class _Int8ArrayDumper(_ArrayDumper):
    oid = INT8_ARRAY

    def encode(self, obj: Int8Array) -> Buffer:
        return encode_int8_array(obj)


class _Int4ArrayDumper(_ArrayDumper):
    oid = INT4_ARRAY

    def encode(self, obj: Int4Array) -> Buffer:
        return encode_int4_array(obj)


class _TextArrayDumper(_ArrayDumper):
    oid = TEXT_ARRAY

    def encode(self, obj: TextArray) -> Buffer:
        return encode_text_array(obj, self.encoding)


class _ByteaArrayDumper(_ArrayDumper):
    oid = BYTEA_ARRAY

    def encode(self, obj: ByteaArray) -> Buffer:
        return encode_bytea_array(obj)


class _Int8Dumper(_BinaryDumper):
    # Every int is a bigint: psycopg's own choice by size would prepare a statement per combination of sizes.
    oid = INT8

    def dump(self, obj: int) -> Buffer:
        return obj.to_bytes(8, "big", signed=True)


class _JsonbLoader(Loader):
    # psycopg's own calls the function that a user has set for the whole process (`set_json_loads`).
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> Any:
        return json.loads(bytes(data)[1:])  # behind the version of the format


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(BatchArray, _BatchArrayDumper)
    adapters.register_dumper(Int8Array, _Int8ArrayDumper)
    adapters.register_dumper(Int4Array, _Int4ArrayDumper)
    adapters.register_dumper(TextArray, _TextArrayDumper)
    adapters.register_dumper(ByteaArray, _ByteaArrayDumper)
    adapters.register_dumper(int, _Int8Dumper)
    adapters.register_dumper(Int8, _Int8Dumper)
    adapters.register_loader("jsonb", _JsonbLoader)
    return adapters


ADAPTERS = _adapters()


class Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor with msgtx's own parameter types, on any connection; results are binary."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        self._adapters = ADAPTERS
        self.format = pq.Format.BINARY


class AsyncCursor(psycopg.AsyncCursor[tuple[Any, ...]]):
    """The same on the connection of an async session."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection)
        self._adapters = ADAPTERS
        self.format = pq.Format.BINARY


def numbered(statement: str) -> bytes:
    """Return a statement as libpq takes it, and PREPARE: its parameters are $1, $2 and so on."""
    numbers = itertools.count(1)
    return re.sub("%s", lambda _: f"${next(numbers)}", statement).encode()


def readable(descriptors: Sequence[int], seconds: float) -> set[int]:
    """Wait until one of these can be read from, at most `seconds`. Returns those that can; any number, unlike `select`."""
    look = select.poll()
    for each in descriptors:
        look.register(each, select.POLLIN)
    return {descriptor for descriptor, _ in look.poll(max(0.0, 1_000 * seconds))}


class Arriving:
    """The answer to a statement that was sent, as it arrives.

    libpq's `get_result` waits for what has not arrived yet, and holds Python's lock meanwhile: no thread runs.
    A part of an answer, even its last byte, may be a network's delay behind the others.
    """

    END_SECONDS: Final = 0.1  # a moment behind the beginning: PostgreSQL sends an error ahead of its end

    def __init__(self) -> None:
        self._results: list[pq.abc.PGresult] = []

    def take(self, raw: pq.abc.PGconn) -> list[pq.abc.PGresult] | None:
        """Return the results if the whole answer has arrived, else None: ask again after the next `consume_input`.

        It waits `END_SECONDS` for the end of an answer that has begun, without the lock.
        """
        deadline = time.monotonic() + self.END_SECONDS
        while True:
            while not raw.is_busy():
                result = raw.get_result()
                if result is None:
                    results, self._results = self._results, []
                    return results
                self._results.append(result)
            if not self._results or not readable([raw.socket], deadline - time.monotonic()):
                return None
            raw.consume_input()


Answer = TypeVar("Answer")
Statement = tuple[str, Sequence[object]]
# The name of a prepared statement; or a statement and the types of its arguments, on a connection that keeps none.
Prepared = tuple[bytes | str, tuple[int, ...] | None, Sequence[Buffer | None], Sequence[pq.Format] | None]


# The names of a connection's prepared statements, by statement and types of its arguments.
Known = dict[tuple[str, tuple[int, ...]], bytes]
_numbers_of_names: Final = itertools.count()  # a name is not used again


class Statements:
    """The statements that a connection of ours has prepared, and the shortest way to run one, autocommitting.

    Works as a `Cursor` does for such a statement. A cursor builds itself and a query for each call, and asks a cache
    that may forget: 37 µs of Python where this takes 20 (decision 0002).
    """

    MOST: Final = 200  # a function has a few: each pattern of arguments that are null is another one
    QUICK_MS: Final = 100  # most answers come sooner; a later one is waited for by psycopg, with its deadlines

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._values = Transformer.from_context(Cursor(connection))
        self._known: Known = {}
        self._answer = select.poll()
        self._answer.register(connection.pgconn.socket, select.POLLIN)

    def has_answer(self, milliseconds: int) -> bool:
        """Return whether something has come, within so many milliseconds."""
        return bool(self._answer.poll(milliseconds))

    @property
    def keeps(self) -> bool:
        """Whether the connection keeps prepared statements: a pooler gives each SQL transaction another one."""
        return self._connection.prepare_threshold is not None

    @property
    def usable(self) -> bool:
        """Whether a statement can be run: the connection keeps statements, is outside of transactions and of pipelines."""
        connection = self._connection
        return (
            self.keeps
            and connection.autocommit
            and connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
            and connection.pgconn.pipeline_status == pq.PipelineStatus.OFF
            and len(self._known) < self.MOST
        )

    def run(self, statement: str, arguments: Sequence[object]) -> list[tuple[Any, ...]]:
        """Run a statement that returns rows. Raise psycopg's errors."""
        return self._rows(self._done(lambda: self._asking(statement, arguments)))

    def run_both(
        self, statement: str, arguments: Sequence[object], then: str, with_these: Sequence[object]
    ) -> tuple[list[tuple[Any, ...]], bool]:
        """Do the same and then run another statement: one round trip, each in a SQL transaction of its own.

        Returns also whether the second one succeeded.
        """
        result, succeeded = self._done(lambda: self._asking_both(statement, arguments, then, with_these))
        return self._rows(result), succeeded

    def run_together(self, asked: Sequence[Statement], sent: Callable[[], object]) -> list[list[tuple[Any, ...]]]:
        """Run several statements in one SQL transaction and one round trip; on any connection. Returns the rows of each.

        `sent`: called when all are on their way. An error undoes all.
        """
        connection = self._connection
        with connection.lock:
            return [self._rows(result) for result in connection.wait(self._asking_together(asked, sent))]

    def _done(self, ask: Callable[[], PQGen[Answer]]) -> Answer:
        connection = self._connection
        with connection.lock:
            try:
                return connection.wait(ask())
            except psycopg.errors.InvalidSqlStatementName:  # a DISCARD or DEALLOCATE: nothing has run
                self._known.clear()
                return connection.wait(ask())

    def _rows(self, result: pq.abc.PGresult) -> list[tuple[Any, ...]]:
        self._values.set_pgresult(result, format=pq.Format.BINARY)
        return self._values.load_rows(0, result.ntuples, tuple)

    def _asking(self, query: str, arguments: Sequence[object]) -> PQGen[pq.abc.PGresult]:
        prepared = yield from self._prepare(query, arguments)
        self._send(prepared)
        return self._checked((yield from self._results()))

    def _asking_both(
        self, query: str, arguments: Sequence[object], then: str, with_these: Sequence[object]
    ) -> PQGen[tuple[pq.abc.PGresult, bool]]:
        pgconn = self._connection.pgconn
        first, second = (yield from self._prepare(query, arguments)), (yield from self._prepare(then, with_these))
        pgconn.enter_pipeline_mode()
        for prepared in (first, second):
            self._send(prepared)
            pgconn.pipeline_sync()
        answers, following = (yield from self._results_until_sync()), (yield from self._results_until_sync())
        pgconn.exit_pipeline_mode()
        return self._checked(answers), following[-1].status == pq.ExecStatus.TUPLES_OK

    def _asking_together(self, asked: Sequence[Statement], sent: Callable[[], object]) -> PQGen[list[pq.abc.PGresult]]:
        pgconn, prepared = self._connection.pgconn, []
        for query, arguments in asked:
            prepared.append((yield from self._prepare(query, arguments)))
        pgconn.enter_pipeline_mode()
        for each in prepared:
            self._send(each)
        pgconn.pipeline_sync()
        sent()
        answers = yield from self._results_until_sync()
        pgconn.exit_pipeline_mode()
        return [self._checked([answer]) for answer in answers]

    def _prepare(self, query: str, arguments: Sequence[object]) -> PQGen[Prepared]:
        """Have the server know a statement, if the connection keeps any. Return the value for libpq."""
        pgconn, values = self._connection.pgconn, self._values
        sent = values.dump_sequence(arguments, [PyFormat.AUTO] * len(arguments))
        types, formats = values.types, values.formats
        assert types is not None
        if not self.keeps:
            return query, types, sent, formats
        name = self._known.get((query, types))
        if name is None:
            name = b"msgtx_%d" % next(_numbers_of_names)
            pgconn.send_prepare(name, numbered(query), param_types=types)
            self._checked((yield from self._results()))
            self._known[query, types] = name
        return name, None, sent, formats

    def _send(self, prepared: Prepared) -> None:
        said, types, arguments, formats = prepared
        pgconn, binary = self._connection.pgconn, pq.Format.BINARY
        if isinstance(said, str):
            pgconn.send_query_params(numbered(said), arguments, types, param_formats=formats, result_format=binary)
        else:
            pgconn.send_query_prepared(said, arguments, param_formats=formats, result_format=binary)

    def _results(self) -> PQGen[list[pq.abc.PGresult]]:
        """Return the results of one statement."""
        results = []
        while (result := (yield from self._result())) is not None:
            results.append(result)
        return results

    def _results_until_sync(self) -> PQGen[list[pq.abc.PGresult]]:
        """Return the results of one statement and of its COMMIT: the last one is an error if either failed."""
        results = []
        while (result := (yield from self._result())) is None or result.status != pq.ExecStatus.PIPELINE_SYNC:
            if result is not None:
                results.append(result)
            elif self._connection.pgconn.status == pq.ConnStatus.BAD:
                if results:
                    self._checked(results)  # the server's last word says more
                raise psycopg.OperationalError("the connection is lost")
        return results

    def _result(self) -> PQGen[pq.abc.PGresult | None]:
        pgconn = self._connection.pgconn
        while pgconn.is_busy():
            if pgconn.flush() != 0:
                yield Wait.RW
            elif not self.has_answer(self.QUICK_MS):
                yield Wait.R
            pgconn.consume_input()
        return pgconn.get_result()

    def _checked(self, results: Sequence[pq.abc.PGresult]) -> pq.abc.PGresult:
        result = results[-1]
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(result, encoding=self._connection.info.encoding)
        return result
