"""`msgtx groups`: who reads what and how far it is, and putting offsets elsewhere."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from msgtx import errors
from msgtx.cli.database import connect
from msgtx.cli.options import Group, Invocation, confirmed, destructive, option, pass_invocation
from msgtx.cli.output import row_of, show_many, show_one, show_table, write
from msgtx.rules.group import State
from msgtx.types import GroupDescription, ShiftBy, TopicPartition

if TYPE_CHECKING:
    from msgtx.client import Client
    from msgtx.rules.reset import Target

# Kafka's columns, in Kafka's order.
PARTITION_COLUMNS: Final = (
    "group",
    "topic",
    "partition",
    "current_offset",
    "log_end_offset",
    "lag",
    "lag_ms",
    "member_id",
    "client_host",
    "client_process",
)
MEMBER_COLUMNS: Final = (
    "group",
    "member_id",
    "group_instance_id",
    "client_host",
    "client_process",
    "session_over",
    "owned",
    "target",
)
RESET_COLUMNS: Final = ("group", "topic", "partition", "current_offset", "new_offset", "note")


@click.group("groups", cls=Group)
def command() -> None:
    """Look at consumer groups, and put their offsets elsewhere."""


@command.command("list")
@option(
    "--state",
    multiple=True,
    type=click.Choice([str(state) for state in State]),
    help="Only these; may be repeated.  [default: all but Dead]",
)
@pass_invocation
def list_groups(invocation: Invocation, state: tuple[str, ...]) -> None:
    """List the groups. `members` counts those whose session is not over."""
    with connect(invocation) as client:
        found = client.admin.groups.list(state)
    show_many(invocation.format, map(row_of, found), ("group", "state", "strategy", "members"))


@command.command("describe")
@click.argument("group")
@pass_invocation
def describe(invocation: Invocation, group: str) -> None:
    """Show how far a group is on each partition, and who owns it.

    `lag` counts the records that are still to be delivered at read_committed: it is 0 when caught up, whatever was aborted.
    `lag_ms` is how old the first of them is; that of the group is the oldest.
    """
    with connect(invocation) as client:
        found = _known(client, group)
    rows = [{"group": group, **row_of(partition)} for partition in found.partitions]
    summary = {**row_of(found), "partitions": rows}
    if invocation.format == "table":
        show_one("table", {**summary, "partitions": len(rows)})
        show_table(PARTITION_COLUMNS, [[row[column] for column in PARTITION_COLUMNS] for row in rows])
    else:
        show_one(invocation.format, summary)


@command.command("members")
@click.argument("group")
@pass_invocation
def members(invocation: Invocation, group: str) -> None:
    """Show the members of a group: what each owns, and what it shall own when others have released it."""
    with connect(invocation) as client:
        _known(client, group)
        found = client.admin.groups.members(group)
    show_many(invocation.format, [{"group": group, **row_of(member)} for member in found], MEMBER_COLUMNS)


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
    """Read an ISO 8601 duration of days and less."""
    number = r"(\d{1,9})"
    found = re.fullmatch(
        rf"P(?:{number}D)?(?:T(?:{number}H)?(?:{number}M)?(?:(\d{{1,9}}(?:\.\d{{1,6}})?)S)?)?", text, re.ASCII
    )
    if found is None or text.endswith(("P", "T")):
        raise click.BadParameter(f"{text!r} is no duration like P1DT2H30M or PT90S")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return timedelta(days=min(days, 1e6), hours=hours, minutes=minutes, seconds=seconds)


def moment(text: str) -> datetime:
    """Read an ISO 8601 time; without an offset it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no time like 2026-01-31T12:00:00 or 2026-01-31T12:00:00+01:00") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@command.command("reset-offsets")
@click.argument("group")
@topic_option
@option("--all-topics", is_flag=True, help="Wherever the group has an offset.")
@option("--to-earliest", is_flag=True, help="The log start.")
@option("--to-latest", is_flag=True, help="The last stable offset: what is undecided now is still to be delivered.")
@option("--to-current", is_flag=True, help="Where it is, but inside the log; latest where there is no offset.")
@option("--to-offset", type=int, metavar="N")
@option("--shift-by", type=int, metavar="N", help="So many offsets further; negative: back.")
@option("--by-duration", type=duration, metavar="PnDTnHnMnS", help="The first record at or after so long ago.")
@option(
    "--to-datetime",
    type=moment,
    metavar="TIME",
    help="The first record at or after an ISO 8601 time, like 2026-01-31T12:00:00+01:00; without an offset it is UTC.",
)
@option(
    "--from-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Lines of topic,partition,offset, as --export writes them; - is stdin (then with --yes).",
)
@option("--export", is_flag=True, help="Write the new offsets as lines of topic,partition,offset, and change nothing.")
@destructive
@pass_invocation
def reset_offsets(
    invocation: Invocation,
    group: str,
    *,
    scopes: Scopes,
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    by_duration: timedelta | None,
    to_datetime: datetime | None,
    from_file: io.TextIOBase | None,
    export: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Put a group's offsets elsewhere: show what would be changed, and ask.

    Exactly one target, and --topic or --all-topics (but not with --from-file). An offset outside the log is moved to its
    nearest end, and the note says so. The group must have no members; it need not exist.

    \b
    Keep a group's offsets, and put them back:
      msgtx groups reset-offsets billing --all-topics --to-current --export > offsets.csv
      msgtx groups reset-offsets billing --from-file offsets.csv
    """  # noqa: D301 - \b is click's mark for text that is not filled
    words: list[tuple[bool, Target]] = [(to_earliest, "earliest"), (to_latest, "latest"), (to_current, "current")]
    targets: list[Target] = [word for chosen, word in words if chosen]
    targets += [value for value in (to_offset, by_duration, to_datetime) if value is not None]
    targets += [ShiftBy(shift_by)] if shift_by is not None else []
    targets += [offsets_of(from_file)] if from_file is not None else []
    if len(targets) != 1:
        raise click.UsageError(
            "give exactly one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --by-duration,"
            " --to-datetime, --from-file"
        )
    if (len(scopes) > 0) + all_topics + (from_file is not None) != 1:
        raise click.UsageError("give --topic, --all-topics, or a file that names the partitions, and only one of these")
    with connect(invocation) as client:
        partitions = _partitions_of(client, scopes) if scopes else None
        planned = client.admin.groups.reset(group, targets[0], partitions=partitions, dry_run=True)
        if export:
            write(_lines((one.topic, one.partition, one.new_offset) for one in planned))
            return
        if not dry_run:
            _require_empty(client.admin.groups.describe(group))
        show_many(invocation.format, [{"group": group, **row_of(one)} for one in planned], RESET_COLUMNS)
        what = f"reset {_counted(len(planned), 'offset')} of group {group!r}"
        if planned and confirmed(what, dry_run=dry_run, yes=yes):
            # These offsets and no others: by a time they might be other ones by now.
            client.admin.groups.reset(group, {TopicPartition(one.topic, one.partition): one.new_offset for one in planned})


@command.command("delete")
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@destructive
@pass_invocation
def delete(invocation: Invocation, groups: tuple[str, ...], *, dry_run: bool, yes: bool) -> None:
    """Delete groups with their offsets. They must have no members."""
    with connect(invocation) as client:
        known = [_known(client, group) for group in dict.fromkeys(groups)]
        for found in known:
            _require_empty(found)
        for found in known:
            offsets = sum(one.current_offset is not None or one.pending for one in found.partitions)
            if confirmed(f"delete group {found.group!r} ({_counted(offsets, 'offset')})", dry_run=dry_run, yes=yes):
                client.admin.groups.delete(found.group)


@command.command("delete-offsets")
@click.argument("group")
@topic_option
@destructive
@pass_invocation
def delete_offsets(invocation: Invocation, group: str, scopes: Scopes, *, dry_run: bool, yes: bool) -> None:
    """Delete a group's offsets, also those that wait for the decision of a transaction.

    Partitions that a living member owns are refused, and then nothing is deleted.
    """
    if not scopes:
        raise click.UsageError("give --topic")
    with connect(invocation) as client:
        found = {TopicPartition(one.topic, one.partition): one for one in _known(client, group).partitions}
        asked = _partitions_of(client, scopes)
        rows = [
            {"group": group, "topic": one.topic, "partition": one.partition, "current_offset": one.current_offset}
            for partition, one in found.items()
            if partition in asked and (one.current_offset is not None or one.pending)
        ]
        show_many(invocation.format, rows, RESET_COLUMNS[:4])
        what = f"delete {_counted(len(rows), 'offset')} of group {group!r}"
        if rows and confirmed(what, dry_run=dry_run, yes=yes):
            client.admin.groups.delete_offsets(group, asked)


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


def _partitions_of(client: "Client", scopes: Scopes) -> set[TopicPartition]:
    """Return the partitions that are meant. Raise `UnknownTopicOrPartition`."""
    found = set()
    for topic, indexes in scopes:
        count = client.topics.describe(topic).partitions
        for index in range(count) if indexes is None else indexes:
            if index >= count:
                raise errors.UnknownTopicOrPartition(f"there is no partition {topic}-{index}")
            found.add(TopicPartition(topic, index))
    return found


def _known(client: "Client", group: str) -> GroupDescription:
    found = client.admin.groups.describe(group)
    if found.state == State.DEAD and group not in {listed.group for listed in client.admin.groups.list([State.DEAD])}:
        raise errors.GroupNotFound(f"there is no consumer group {group!r}")
    return found


def _require_empty(found: GroupDescription) -> None:
    if found.members:
        raise errors.GroupNotEmpty(f"group {found.group!r} is {found.state} and has {_counted(found.members, 'member')}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count != 1 else "")
