"""Resets of a group's offsets: the common part of `groups reset-offsets` and `shares reset-offsets`."""

import csv
import io
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from msgtx.changes import preview
from msgtx.cli.terminal.confirmation import Decorated, carry_out, confirmed, destructive
from msgtx.cli.terminal.invocation import Invocation, option
from msgtx.cli.terminal.output import show_many, write
from msgtx.errors import InvalidRequest
from msgtx.scopes import read_duration, read_moment, read_scope
from msgtx.types import ShiftBy, TopicPartition

if TYPE_CHECKING:
    from msgtx.client import Client
    from msgtx.rules.reset import Target

Read = TypeVar("Read")


def parameter(read: Callable[[str], Read]) -> Callable[[str], Read]:
    """Return the type of an option whose text `read` reads; click says what the text is not."""

    def parse(text: str) -> Read:
        try:
            return read(text)
        except InvalidRequest as error:
            raise click.BadParameter(str(error)) from error

    return parse


topic_option = option(
    "--topic",
    "scopes",
    multiple=True,
    type=parameter(read_scope),
    metavar="TOPIC[:P,P...]",
    help="A topic, or some of its partitions; may be repeated.",
)


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
        type=parameter(read_duration),
        metavar="DURATION",
        help="The first record that is at most this old: 36h, or P1DT12H.",
    ),
    option(
        "--to-datetime",
        type=parameter(read_moment),
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


def reset_group(invocation: Invocation, client: "Client", verb: str, group: str, given: dict[str, Any]) -> None:
    """Show the changes of a reset, ask, and make them. `given`: values of `reset_options`."""
    asked = preview(client, verb, group=group, target=target_of(given), scopes=given["scopes"] or None)
    if given["export"]:
        write(_lines((row["topic"], row["partition"], row["new_offset"]) for row in asked.rows))
        return
    if asked.refusal is not None and not given["dry_run"]:
        raise asked.refusal
    show_many(invocation.format, asked.rows, asked.columns)
    if asked.asks and confirmed(asked.says, dry_run=given["dry_run"], yes=given["yes"]):
        carry_out(client, asked, yes=given["yes"])


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
