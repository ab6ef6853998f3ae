"""Resets of a group's offsets: the common part of `groups reset-offsets` and `shares reset-offsets`."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from msgtx import errors, units
from msgtx.cli.terminal.confirmation import Decorated, confirmed, destructive
from msgtx.cli.terminal.invocation import Invocation, option
from msgtx.cli.terminal.output import show_many, write
from msgtx.errors import ConfigError
from msgtx.rows import row_of
from msgtx.types import OffsetReset, ShiftBy, TopicPartition
from msgtx.units import counted

if TYPE_CHECKING:
    from msgtx.client import Client
    from msgtx.rules.reset import Target

RESET_COLUMNS: Final = ("group", "topic", "partition", "current_offset", "new_offset", "note")


def topic_scope(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Read a topic, or some of its partitions (`orders`, `orders:0,2`): the name, and the partitions or None for all."""
    found = re.fullmatch(r"([^:]+)(?::(\d{1,9}(?:,\d{1,9})*))?", text, re.ASCII)
    if found is None:
        raise click.BadParameter(f"{text!r} is no topic, nor a topic with partitions, like orders:0,2")
    return found[1], None if found[2] is None else tuple(map(int, found[2].split(",")))


Scopes = Sequence[tuple[str, Sequence[int] | None]]
topic_option = option(
    "--topic",
    "scopes",
    multiple=True,
    type=topic_scope,
    metavar="TOPIC[:P,P...]",
    help="A topic, or some of its partitions; may be repeated.",
)


def duration(text: str) -> timedelta:
    """Read a duration: `36h`, or ISO 8601, of days and less."""
    if text[:1].isdigit():
        try:
            return timedelta(seconds=units.seconds("it", text))
        except (ConfigError, OverflowError) as error:
            raise click.BadParameter(f"{text!r} is no duration like 36h, 1d12h or P1DT12H") from error
    number = r"(\d{1,9})"
    found = re.fullmatch(
        rf"P(?:{number}D)?(?:T(?:{number}H)?(?:{number}M)?(?:(\d{{1,9}}(?:\.\d{{1,6}})?)S)?)?", text, re.ASCII
    )
    if found is None or text.endswith(("P", "T")):
        raise click.BadParameter(f"{text!r} is no duration like 36h, P1DT2H30M or PT90S")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return timedelta(days=min(days, 1e6), hours=hours, minutes=minutes, seconds=seconds)


def moment(text: str) -> datetime:
    """Read an ISO 8601 time; without an offset it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no time like 2026-01-31T12:00:00 or 2026-01-31T12:00:00+01:00") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


RESET_OPTIONS: Final = (
    topic_option,
    option("--all-topics", is_flag=True, help="All partitions on which the group has an offset."),
    option("--to-earliest", is_flag=True, help="The log start."),
    option("--to-latest", is_flag=True, help="The last stable offset: what is undecided now will still be delivered."),
    option(
        "--to-current",
        is_flag=True,
        help="Where the group is now, moved into the log if need be; latest where it has no offset.",
    ),
    option("--to-offset", type=int, metavar="N"),
    option("--shift-by", type=int, metavar="N", help="This many offsets forward; if negative, back."),
    option(
        "--by-duration",
        type=duration,
        metavar="DURATION",
        help="The first record that is at most this old: 36h, or P1DT12H.",
    ),
    option(
        "--to-datetime",
        type=moment,
        metavar="TIME",
        help="The first record at or after an ISO 8601 time, like 2026-01-31T12:00:00+01:00; without an offset it is UTC.",
    ),
    option(
        "--from-file",
        type=click.File(encoding="utf-8"),
        metavar="FILE",
        help="A file of lines topic,partition,offset, as --export writes them; - is stdin (needs --yes).",
    ),
    option("--export", is_flag=True, help="Write the new offsets as lines of topic,partition,offset, and change nothing."),
)


def reset_options(verb: Decorated) -> Decorated:
    """Give a verb the options of a reset."""
    verb = destructive(verb)
    for each in reversed(RESET_OPTIONS):
        verb = each(verb)
    return verb


class Reset(Protocol):
    """`reset` of an administrator's groups, or share groups."""

    def __call__(
        self, group: str, target: "Target", *, partitions: Iterable[TopicPartition] | None = None, dry_run: bool = False
    ) -> list[OffsetReset]:
        """Reset offsets; with `dry_run` only say where."""
        ...


def target_of(given: dict[str, Any]) -> "Target":
    """Return the one target of the options, and check that they name partitions. Raise a usage error."""
    targets: list[Target] = [word for word in ("earliest", "latest", "current") if given[f"to_{word}"]]
    targets += [given[name] for name in ("to_offset", "by_duration", "to_datetime") if given[name] is not None]
    targets += [ShiftBy(given["shift_by"])] if given["shift_by"] is not None else []
    targets += [offsets_of(given["from_file"])] if given["from_file"] is not None else []
    if len(targets) != 1:
        raise click.UsageError(
            "give exactly one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --by-duration,"
            " --to-datetime, --from-file"
        )
    if (len(given["scopes"]) > 0) + given["all_topics"] + (given["from_file"] is not None) != 1:
        raise click.UsageError("give --topic, --all-topics, or a file that names the partitions, and only one of these")
    return targets[0]


def reset_group(
    invocation: Invocation,
    client: "Client",
    group: str,
    target: "Target",
    given: dict[str, Any],
    *,
    what: str,
    reset: Reset,
    require_empty: Callable[[], None],
) -> None:
    """Show the changes of a reset, ask, and make them. `what`: the group in words; `given`: values of `reset_options`."""
    partitions = partitions_of(client, given["scopes"]) if given["scopes"] else None
    planned = reset(group, target, partitions=partitions, dry_run=True)
    if given["export"]:
        write(_lines((one.topic, one.partition, one.new_offset) for one in planned))
        return
    if not given["dry_run"]:
        require_empty()
    show_many(invocation.format, [{"group": group, **row_of(one)} for one in planned], RESET_COLUMNS)
    question = f"reset {counted(len(planned), 'offset')} of {what}"
    if planned and confirmed(question, dry_run=given["dry_run"], yes=given["yes"]):
        # These offsets and no others: by a time they might be other ones by now.
        reset(group, {TopicPartition(one.topic, one.partition): one.new_offset for one in planned})


def offsets_of(file: io.TextIOBase) -> dict[TopicPartition, int]:
    """Read lines of topic,partition,offset. Raise a usage error that names the line."""
    found: dict[TopicPartition, int] = {}
    name = getattr(file, "name", "-")
    try:
        rows = csv.reader(file, strict=True)
        for row in rows:
            if not row:
                continue
            if len(row) != 3 or not all(re.fullmatch(r" *\d{1,18} *", part, re.ASCII) for part in row[1:]):
                raise click.UsageError(f"{name}:{rows.line_num}: {','.join(row)!r} does not read topic,partition,offset")
            partition = TopicPartition(row[0].strip(), int(row[1]))
            if partition in found:
                raise click.UsageError(f"{name}:{rows.line_num}: {partition} is there twice")
            found[partition] = int(row[2])
    except (csv.Error, UnicodeDecodeError) as error:
        raise click.UsageError(f"{name}: {error}") from error
    return found


def _lines(rows: Iterable[tuple[str, int, int]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def partitions_of(client: "Client", scopes: Scopes) -> set[TopicPartition]:
    """Return the partitions that are meant. Raise `UnknownTopicOrPartition`."""
    found = set()
    for topic, indexes in scopes:
        count = client.topics.describe(topic).partitions
        for index in range(count) if indexes is None else indexes:
            if index >= count:
                raise errors.UnknownTopicOrPartition(
                    f"there is no partition {topic}-{index}; {topic} has {count}", topic=topic, partition=index
                )
            found.add(TopicPartition(topic, index))
    return found
