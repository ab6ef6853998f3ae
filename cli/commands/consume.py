"""`msgtx consume`: records as lines."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from msgtx.cli.terminal import completion
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.interruption import StopEvent, stopping
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import reader_has_left, require_stdout
from msgtx.cli.terminal.quantities import earliest_latest_or_number, milliseconds
from msgtx.cli.terminal.record_templates import rendering
from msgtx.cli.terminal.setting_options import isolation
from msgtx.errors import fresh
from msgtx.rows import line_of_record
from msgtx.types import Record, TopicPartition

if TYPE_CHECKING:
    from msgtx.client import Client
    from msgtx.consumer.consumer import Consumer

POLL_S: Final = 0.2  # the longest wait before a signal is seen
POLL_RECORDS: Final = 2_000  # of one poll: written, and then counted as printed, at once
COMMIT_S: Final = 1.0  # between two commits of printed records
Render = Callable[[Sequence[Record]], bytes]


class PrintedLines:
    """How records become bytes on stdout: values as they are, as a template says, JSON lines, or one JSON array."""

    def __init__(self, format_name: str, key_separator: bytes | None, template: Render | None = None) -> None:
        self._separator = key_separator
        self._array = format_name == "json" and template is None
        self._render: Render = template or (self._values if format_name == "table" else self._rows)
        self._first = True
        self._out = sys.stdout.buffer

    def write(self, records: Sequence[Record]) -> None:
        """Write records and flush: when this returns, they are printed."""
        text = self._render(records)
        if self._array and records:
            text = (b"[\n" if self._first else b",\n") + text
            self._first = False
        self._out.write(text)
        self._out.flush()

    def end(self) -> None:
        """Close the array."""
        if self._array:
            self._out.write(b"[]\n" if self._first else b"\n]\n")
            self._out.flush()

    def _values(self, records: Sequence[Record]) -> bytes:
        values = [b"null" if record.value is None else record.value for record in records]
        if self._separator is not None:
            keys = [b"null" if record.key is None else record.key for record in records]
            values = [key + self._separator + value for key, value in zip(keys, values, strict=True)]
        return b"".join(value + b"\n" for value in values)

    def _rows(self, records: Sequence[Record]) -> bytes:
        rows = [line_of_record(record) for record in records]
        return ",\n".join(rows).encode() if self._array else "".join(row + "\n" for row in rows).encode()


@click.command(
    "consume",
    cls=Command,
    examples=(
        "msgtx consume orders --from-beginning --no-follow",
        "msgtx consume orders --partition 0 --offset 42 --max-messages 1 -o json",
        "msgtx consume orders --group audit --from-beginning --timeout-ms 10s",
        "msgtx consume orders --share workers --max-messages 10 --no-follow",
    ),
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=completion.topics)
@option("--group", help="Be a member of this group: begin at its offsets, and commit what was printed.")
@option(
    "--share",
    metavar="GROUP",
    shell_complete=completion.shares,
    help="Be a member of this share group: take records one by one, and accept what was printed.",
)
@option("--from-beginning", is_flag=True, help="Begin at the log start; with --group, only if the group has no offset yet.")
@option(
    "--partition",
    multiple=True,
    type=click.IntRange(min=0),
    help="Read only this partition, without joining a group; may be repeated.",
)
@option("--offset", type=earliest_latest_or_number, metavar="earliest|latest|OFFSET", help="Begin there in each partition.")
@isolation
@option("--max-messages", type=click.IntRange(min=0), help="End after this many records.")
@option("--timeout-ms", type=milliseconds(), help="End when no record came for this long: ms, or 10s, 1h.")
@option("--follow/--no-follow", default=True, help="Wait for more records, or end where the topic ends now.")
@option("--key-separator", metavar="TEXT", help="Print the key and TEXT before the value.")
@option("--format", "-f", "template", metavar="TEXT", help="Print TEXT for each record; see above.")
@pass_invocation
def command(
    invocation: Invocation,
    topics: tuple[str, ...],
    *,
    group: str | None,
    share: str | None,
    from_beginning: bool,
    partition: tuple[int, ...],
    offset: str | int | None,
    isolation: str | None,
    max_messages: int | None,
    timeout_ms: int | None,
    follow: bool,
    key_separator: str | None,
    template: str | None,
) -> int:
    """Print the records of TOPICs.

    Like kafka-console-consumer, it begins with the records that come from now on, and does not end by itself. Use
    --from-beginning, --group or --offset to begin elsewhere, and --max-messages, --timeout-ms or --no-follow to end it.
    Ctrl-C (exit code 130) and SIGTERM (0) end it, too.

    A record is printed as one line with its value: the bytes as they are, or null for a tombstone. -o jsonl prints the
    whole record, in the form that `produce --json` reads; -o json prints one array of such records. There, a value that is
    a JSON object or array stands as JSON, any other text as a text, and other bytes in base64 (value_base64).

    \b
    --format is kcat's, for example --format '%t-%p %o %T %k %s\n':
      %t topic      %k key, %K its bytes      %T timestamp in milliseconds
      %p partition  %s value, %S its bytes    %h headers: name=content,...
      %o offset     %% a percent sign         \n \r \t \\ \x00
    A missing key or value is empty, and its bytes are -1.

    With --share, any number of members divide the records, even those of a single partition, and this command gets only
    some of them. Records that it took but did not print go to other members. Where the group begins and what it sees are
    settings of the group (`shares configure`). --no-follow ends when there is nothing more to get.
    """  # noqa: D301 - \b is click's mark for text that is not filled
    if template is not None and (key_separator is not None or invocation.format != "table"):
        raise click.UsageError("--format excludes --key-separator and -o")
    if share is not None:
        others: dict[str, object] = {
            "--group": group,
            "--from-beginning": from_beginning or None,
            "--partition": partition or None,
        }
        others |= {"--offset": offset, "--isolation": isolation}
        if refused := [name for name, value in others.items() if value is not None]:
            raise click.UsageError(f"--share excludes {', '.join(refused)}; see `msgtx shares configure`, `reset-offsets`")
    if offset is not None and from_beginning:
        raise click.UsageError("--offset and --from-beginning exclude each other")
    if group is not None or share is not None:
        require_stdout()
    separator = None if key_separator is None else key_separator.encode(errors="surrogateescape")
    settings: dict[str, Any] = {"group": group, "isolation": isolation}
    settings["auto_offset_reset"] = "earliest" if from_beginning else None
    given = {name: value for name, value in settings.items() if value is not None}
    timeout_s = None if timeout_ms is None else timeout_ms / 1000
    with connect(invocation) as client, stopping() as stop:
        lines = PrintedLines(invocation.format, separator, None if template is None else rendering(template))
        if share is not None:
            limit = timeout_s if follow else 0.0
            _print_shared(client, share, topics, lines, stop, most=max_messages, timeout_s=limit)
            return stop.exit_code if stop.is_set() else 0
        with client.consumer(enable_auto_commit=False, **given) as consumer:
            printed: dict[TopicPartition, int] = {}
            if group is not None and not partition:
                consumer.subscribe(
                    list(dict.fromkeys(topics)),
                    on_assign=lambda gained: _seek(consumer, offset, gained),
                    on_revoke=lambda _: _commit(consumer, printed),
                    on_lost=lambda lost: [printed.pop(each, None) for each in lost],
                )
            else:
                consumer.assign(_assignment(client, topics, partition))
                _seek(consumer, offset, consumer.assignment())
            _print(
                consumer,
                lines,
                stop,
                printed,
                ends=None if follow else consumer.end_offsets(),
                most=max_messages,
                timeout_s=timeout_s,
            )
        return stop.exit_code if stop.is_set() else 0


def _assignment(client: "Client", topics: Iterable[str], partitions: Sequence[int]) -> list[TopicPartition]:
    names = list(dict.fromkeys(topics))
    return [
        TopicPartition(name, index)
        for name in names
        for index in (dict.fromkeys(partitions) or range(client.topics.describe(name).partitions))
    ]


def _seek(consumer: "Consumer", offset: str | int | None, partitions: Iterable[TopicPartition]) -> None:
    if offset == "earliest":
        consumer.seek_to_beginning(partitions)
    elif offset == "latest":
        consumer.seek_to_end(partitions)
    elif isinstance(offset, int):
        for partition in partitions:
            consumer.seek(partition, offset)


def _print(
    consumer: "Consumer",
    lines: PrintedLines,
    stop: StopEvent,
    printed: dict[TopicPartition, int],
    *,
    ends: dict[TopicPartition, int] | None,
    most: int | None,
    timeout_s: float | None,
) -> None:
    """Print until one of the limits is reached, or a signal comes; commit what was printed."""
    left = most
    last_record = committed = time.monotonic()
    try:
        while not stop.is_set() and left != 0:
            mine = consumer.assignment()
            if ends is not None and all(tp not in mine or consumer.position(tp) >= end for tp, end in ends.items()):
                break
            wait = POLL_S if timeout_s is None else min(POLL_S, timeout_s)
            records = consumer.poll(wait, POLL_RECORDS if left is None else min(POLL_RECORDS, left))
            now = time.monotonic()
            if records:
                lines.write(records)
                printed.update({TopicPartition(r.topic, r.partition): r.offset + 1 for r in records})
                left = None if left is None else left - len(records)
                last_record = now
            elif reader_has_left():
                break
            elif timeout_s is not None and now - last_record >= timeout_s:
                if consumer.failing is not None:  # nobody has said that there are no records
                    raise fresh(consumer.failing)
                break
            if now - committed >= COMMIT_S:
                _commit(consumer, printed)
                committed = now
        lines.end()
    finally:
        _commit(consumer, printed)


def _commit(consumer: "Consumer", printed: dict[TopicPartition, int]) -> None:
    if printed and consumer.config.group is not None:
        consumer.commit(dict(printed))
        printed.clear()


def _print_shared(
    client: "Client",
    group: str,
    topics: Iterable[str],
    lines: PrintedLines,
    stop: StopEvent,
    *,
    most: int | None,
    timeout_s: float | None,
) -> None:
    """Print the records of a member of a share group, and accept each when it is printed; leaving releases the rest."""
    left = most
    with client.share_consumer(*dict.fromkeys(topics), group=group, acknowledgement_mode="explicit") as consumer:
        last_record = time.monotonic()
        # Asked before each poll: a record that is taken and cannot be printed would count as delivered once more.
        while not stop.is_set() and left != 0 and not reader_has_left():
            wait = POLL_S if timeout_s is None else min(POLL_S, timeout_s)
            records = consumer.poll(wait, POLL_RECORDS if left is None else min(POLL_RECORDS, left))
            if records:
                lines.write(records)
                for record in records:
                    consumer.acknowledge(record)
                consumer.commit()
                left = None if left is None else left - len(records)
                last_record = time.monotonic()
            elif timeout_s is not None and time.monotonic() - last_record >= timeout_s:
                break
        lines.end()
