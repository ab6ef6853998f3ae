"""`msgtx produce`: lines of files or of stdin as records."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from msgtx.cli.terminal import completion
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.failure import CommandFailed
from msgtx.cli.terminal.input_lines import STDIN, Lines, read_lines, total_bytes
from msgtx.cli.terminal.interruption import INTERRUPTED, StopEvent, stopping
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_one
from msgtx.cli.terminal.progress import progress
from msgtx.cli.terminal.quantities import milliseconds
from msgtx.cli.terminal.record_lines import object_of_line, record_of_line, text_bytes
from msgtx.cli.terminal.setting_options import setting_option
from msgtx.declared.settings import PRODUCER
from msgtx.errors import MsgtxError
from msgtx.rules.record import counted_bytes, record_bytes, too_large
from msgtx.types import OutputRecord
from msgtx.units import counted

if TYPE_CHECKING:
    from msgtx.producer.batches import RecordFuture
    from msgtx.producer.producer import BatchFuture, Producer

END_S: Final = 5.0  # for the last answers of an interrupted command, when the database is away
IDLE_S: Final = 1.0  # a transaction of an input that waits for so long is committed
# A JSON line may be longer than its record: \u0000 is six letters for a byte, and then the names. A header without a name
# and content, of no bytes, is 28 letters.
LINE_FACTOR: Final = 8
LINE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Columns:
    """Values and keys of records that need nothing else."""

    values: Sequence[bytes]
    keys: Sequence[bytes] | None = None
    dedup_keys: Sequence[str] | None = None

    def sizes(self) -> list[int]:
        """Return the bytes of each record."""
        if self.keys is None:
            return list(map(len, self.values))
        return [len(value) + len(key) for value, key in zip(self.values, self.keys, strict=True)]

    def head(self, count: int) -> "Columns":
        """Return the first records."""
        dedup_keys = None if self.dedup_keys is None else self.dedup_keys[:count]
        return Columns(self.values[:count], None if self.keys is None else self.keys[:count], dedup_keys)


Parsed = Columns | list[OutputRecord]
Parse = Callable[[Sequence[bytes]], tuple[Parsed, str | None]]  # the lines up to the first bad one, and its fault


def plain(lines: Sequence[bytes]) -> tuple[Parsed, str | None]:
    """Take a line as a value."""
    return Columns(lines), None


def separated(separator: bytes, lines: Sequence[bytes]) -> tuple[Parsed, str | None]:
    """Take a line as a key, a separator and a value."""
    keys: list[bytes] = []
    values: list[bytes] = []
    for line in lines:
        key, found, value = line.partition(separator)
        if not found:
            return Columns(values, keys), f"the line has no separator {separator.decode(errors='replace')!r}"
        keys.append(key)
        values.append(value)
    return Columns(values, keys), None


def keyed(key: str | None, dedup_key: str | None, lines: Sequence[bytes]) -> tuple[Parsed, str | None]:
    """Take a line as a value that is a JSON object; a field of it is the key, another one the dedup_key, as text."""
    rows: list[list[bytes]] = []
    fault = None
    for line in lines:
        try:
            row = object_of_line(line)
            rows.append([_field(row, name) for name in (key, dedup_key) if name is not None])
        except ValueError as error:
            fault = str(error)
            break
    keys = None if key is None else [row[0] for row in rows]
    dedup_keys = None if dedup_key is None else [row[-1].decode() for row in rows]
    return Columns(lines[: len(rows)], keys, dedup_keys), fault


def _field(row: Mapping[str, object], name: str) -> bytes:
    content = row.get(name)
    if content is None:
        raise ValueError(f"there is no field {name!r}")
    if isinstance(content, str):
        return text_bytes(content)
    if isinstance(content, int) and not isinstance(content, bool):
        return str(content).encode()
    raise ValueError(f"the key is a text or a whole number, not {content!r}"[:120])


def records(lines: Sequence[bytes]) -> tuple[Parsed, str | None]:
    """Take a line as a record, as `consume -o jsonl` writes it."""
    read: list[OutputRecord] = []
    for line in lines:
        try:
            read.append(record_of_line(line))
        except ValueError as error:
            return read, str(error)
    return read, None


def _size(record: OutputRecord) -> int:
    return counted_bytes(record_bytes(record.value, record.key, record.headers), record.headers)


@dataclass(slots=True)
class Delivery:
    """Sends the read lines, in transactions if the producer has an id, and counts them."""

    producer: "Producer"
    topic: str
    parse: Parse
    partition: int | None
    keep_partitions: bool
    transaction_size: int | None
    limit: int
    delay_ms: int | None = None
    takes_blank: bool = True  # blank lines are records, too
    sent: int = 0
    stored: int = 0
    transactions: int = 0
    began_at: float | None = None  # of the open transaction
    in_transaction: int = 0
    waiting: "deque[tuple[BatchFuture | RecordFuture, int]]" = field(default_factory=deque)

    @property
    def transactional(self) -> bool:
        """Whether there are transactions; the id may come from the environment or the settings file, too."""
        return self.producer.config.transactional_id is not None

    def take(self, block: Lines) -> None:
        """Send a block of lines. Raise for the first that is wrong; then those before it are sent."""
        if not block.lines and self.transaction_size is not None and self._older_than(IDLE_S):
            self.commit()
        while block.lines:
            if self.transactional and self.began_at is None:
                self.producer.begin_transaction()
                self.began_at = time.monotonic()
            room = len(block.lines) if self.transaction_size is None else self.transaction_size - self.in_transaction
            part, block = block.split(room)
            parsed, fault = self._parse(part)
            count = self._send(part, parsed)
            self.in_transaction += count
            if fault is not None:
                raise self._failed(f"{part.place(count)}: {fault}")
            self.look(len(self.waiting))
            if self.in_transaction == self.transaction_size:
                self.commit()

    def _parse(self, part: Lines) -> tuple[Parsed, str | None]:
        parsed, fault = self.parse(part.lines)
        sizes = parsed.sizes() if isinstance(parsed, Columns) else [_size(record) for record in parsed]
        if max(sizes, default=0) <= self.limit:
            return parsed, fault
        # Refused here, where its line is known; `send_batch` would refuse the whole column.
        good, size = next((index, size) for index, size in enumerate(sizes) if size > self.limit)
        kept = parsed.head(good) if isinstance(parsed, Columns) else parsed[:good]
        return kept, str(too_large(self.topic, self.limit, size))

    def _send(self, part: Lines, parsed: Parsed) -> int:
        """Send the read lines, and count them in `sent`. Returns how many records that is."""
        if isinstance(parsed, Columns) and (parsed.dedup_keys is not None or self.delay_ms is not None):
            none = [None] * len(parsed.values)
            rows = zip(parsed.values, parsed.keys or none, parsed.dedup_keys or none, strict=True)
            for index, (value, key, dedup_key) in enumerate(rows):
                sent = self._send_one(OutputRecord(value, key), self.partition, part.place(index), dedup_key)
                self.waiting.append((sent, 1))
                self.sent += 1
            return len(parsed.values)
        if isinstance(parsed, Columns):
            future = self.producer.send_batch(self.topic, parsed.values, parsed.keys, partition=self.partition)
            self.waiting.append((future, len(parsed.values)))
            self.sent += len(parsed.values)
            return len(parsed.values)
        for index, record in enumerate(parsed):
            partition = record.partition if self.keep_partitions else self.partition
            self.waiting.append((self._send_one(record, partition, part.place(index)), 1))
            self.sent += 1
        return len(parsed)

    def _send_one(
        self, record: OutputRecord, partition: int | None, place: str, dedup_key: str | None = None
    ) -> "RecordFuture":
        try:
            return self.producer.send(
                self.topic,
                record.value,
                key=record.key,
                partition=partition,
                timestamp=record.timestamp,
                headers=record.headers or None,
                dedup_key=dedup_key,
                delay_ms=self.delay_ms,
            )
        except ValueError as error:  # a usage error of this record
            raise self._failed(f"{place}: {error}") from error

    def look(self, most: int) -> None:
        """Look at the answers that came: raise the first error. Wait for them if more than `most` are awaited."""
        while self.waiting and (len(self.waiting) > most or self.waiting[0][0].done()):
            future, count = self.waiting.popleft()
            future.result()
            self.stored += 0 if self.transactional else count

    def commit(self) -> None:
        """Commit the open transaction."""
        if self.began_at is None:
            return
        self.producer.commit_transaction()
        self.stored += self.in_transaction
        self.transactions += 1
        self.in_transaction, self.began_at = 0, None
        self.look(0)

    def finish(self) -> None:
        """Commit, or wait for all answers."""
        self.commit()
        self.producer.flush()
        self.look(0)

    def end(self) -> None:
        """End before the input does: abort an open transaction; records without one may still be answered."""
        self.producer.close(END_S)
        with contextlib.suppress(MsgtxError):  # it was not sent any more
            while self.waiting and self.waiting[0][0].done():
                self.look(len(self.waiting) - 1)

    def _older_than(self, seconds: float) -> bool:
        return self.began_at is not None and time.monotonic() - self.began_at > seconds

    def _failed(self, what: str) -> CommandFailed:
        if self.transactional:
            return CommandFailed(
                f"{what}; its transaction was aborted ({self.stored} records of earlier ones are committed)"
            )
        return CommandFailed(f"{what}; the records before it were sent ({self.sent})")


@click.command(
    "produce",
    cls=Command,
    examples=(
        "msgtx produce orders lines.txt",
        "msgtx produce orders orders.json --key customer --transactional-id import",
        "msgtx consume orders --no-follow --from-beginning -o jsonl | msgtx produce copy --json",
    ),
)
@click.argument("topic", shell_complete=completion.topics)
@click.argument(
    "files",
    nargs=-1,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, readable=True, path_type=Path),
    metavar="[FILE]...",
)
@option("--json", is_flag=True, help="Lines are records, as `consume -o jsonl` writes them.")
@option("--key", metavar="FIELD", help="Lines are JSON objects; the value of this field is the key.")
@option("--dedup-key", metavar="FIELD", help="Lines are JSON objects; a line is not stored if the topic has seen its FIELD.")
@option("--key-separator", metavar="TEXT", help="Each line is a key, TEXT, and a value.")
@option(
    "--delay-ms",
    type=milliseconds(),
    metavar="DURATION",
    help="Have share groups deliver each record so long after it was sent; consumer groups do not wait.",
)
@option("--partition", type=click.IntRange(min=0), help="Send all records to this partition.")
@option("--keep-partitions", is_flag=True, help="With --json: send each record to the partition that it names.")
@option("--transactional-id", help="Produce in transactions, under this id.")
@option(
    "--transaction-size",
    type=click.IntRange(min=1),
    help="Records per transaction.  [default: all records are one transaction]",
)
@setting_option(PRODUCER, "transaction_timeout_ms")
@setting_option(PRODUCER, "acks")
@pass_invocation
def command(
    invocation: Invocation,
    /,
    topic: str,
    files: tuple[Path, ...],
    *,
    json: bool,
    key: str | None,
    dedup_key: str | None,
    key_separator: str | None,
    delay_ms: int | None,
    partition: int | None,
    keep_partitions: bool,
    transaction_size: int | None,
    **settings: Any,
) -> int:
    """Produce the lines of FILEs to TOPIC. Without FILE, or if FILE is -, reads stdin.

    Each line, without its newline, is a value: bytes, in whatever encoding. A byte order mark of UTF-8 at the beginning of
    a file is left out, and so are blank lines between JSON.

    \b
    With --json, a line is a record like this; only the value is required:
      {"timestamp": "2026-01-31T12:00:00.000Z", "key": "1", "value": "text",
       "headers": [{"key": "source", "value": "web"}]}
    A value may also be a JSON object or array, which is sent as it is written.
    Bytes that are not UTF-8 are given in base64: key_base64, value_base64. A
    value of null is a tombstone. The topic and offset of a consumed record are
    ignored.

    With --transactional-id, the whole input is one transaction, committed at its end. With --transaction-size, it is
    divided into several transactions, and what has been read is also committed whenever the input pauses. A line that
    cannot be used ends the command, and nothing of its transaction is committed. An interruption aborts the transaction,
    too.

    With --dedup-key, you may produce an input again, in whole or in part: within
    dedup_window_ms (`msgtx db settings`), each value of FIELD is stored once.
    """  # noqa: D301 - \b is click's mark for text that is not filled
    if sum((json, key is not None or dedup_key is not None, key_separator is not None)) > 1:
        raise click.UsageError("--json, --key-separator, and --key with --dedup-key exclude each other")
    if keep_partitions and (not json or partition is not None):
        raise click.UsageError("--keep-partitions goes with --json, and not with --partition")
    if key_separator == "":
        raise click.UsageError("--key-separator is at least one letter")
    parse: Parse = records if json else plain
    if key is not None or dedup_key is not None:
        parse = partial(keyed, key, dedup_key)
    elif key_separator is not None:
        parse = partial(separated, key_separator.encode(errors="surrogateescape"))
    inputs = files or (STDIN,)
    given = {name: value for name, value in settings.items() if value is not None}
    started = time.monotonic()
    with connect(invocation) as client, stopping() as stop:
        limit = client.topics.describe(topic).settings["max_message_bytes"]
        assert isinstance(limit, int)
        if partition is not None:
            client.runtime.require_topics(topic)[0].partition_id(partition)  # refused even if the input is empty
        with client.producer(**given) as producer:
            delivery = Delivery(
                producer=producer,
                topic=topic,
                parse=parse,
                partition=partition,
                keep_partitions=keep_partitions,
                transaction_size=transaction_size,
                limit=limit,
                delay_ms=delay_ms,
                takes_blank=parse is plain or key_separator is not None,
            )
            if dedup_key is not None and delivery.transactional:
                raise click.UsageError("--dedup-key excludes transactions")
            if transaction_size is not None and not delivery.transactional:
                raise click.UsageError("--transaction-size needs --transactional-id")
            _deliver(delivery, inputs, stop)
    _tell(delivery, invocation, time.monotonic() - started, stop)
    return INTERRUPTED if stop.is_set() else 0


def _deliver(delivery: Delivery, inputs: Sequence[Path], stop: StopEvent) -> None:
    """Read and send until the input ends, or until a signal: then the open transaction is aborted."""
    longest = delivery.limit * LINE_FACTOR + LINE_BYTES
    done = 0
    typed = STDIN in inputs and sys.stdin.isatty()
    if typed:
        click.echo(f"to {delivery.topic}: a record is a line; Ctrl-D ends", err=True)
    # A bar would write over typed text.
    with (
        contextlib.nullcontext(_silent)
        if typed
        else progress(f"to {delivery.topic}", total=total_bytes(inputs), in_bytes=True) as told
    ):
        try:
            for block in read_lines(inputs, stop, longest=longest, idle_s=IDLE_S):
                for part in (block,) if delivery.takes_blank else block.without_blank():
                    delivery.take(part)
                done += block.bytes_read
                told(done, counted(delivery.sent, "record"))
                if stop.is_set():
                    break
        except KeyboardInterrupt:
            if not stop.is_set():
                raise
        if stop.is_set():
            delivery.end()
        else:
            delivery.finish()


def _silent(completed: int, text: str) -> None:
    """Show nothing."""


def _tell(delivery: Delivery, invocation: Invocation, seconds: float, stop: StopEvent) -> None:
    if invocation.format != "table":
        report = {"topic": delivery.topic, "records": delivery.stored, "transactions": delivery.transactions}
        show_one(invocation.format, {**report, "seconds": round(seconds, 3), "interrupted": stop.is_set()})
        return
    how = f", {counted(delivery.transactions, 'transaction')} committed" if delivery.transactional else ""
    end = ""
    if stop.is_set():
        end = "; interrupted, what was open is aborted" if delivery.transactional else "; interrupted"
    click.echo(f"{counted(delivery.stored, 'record')} to {delivery.topic} in {seconds:.1f} s{how}{end}", err=True)
