"""`msgtx find`: the place of a record, and the progress of each group with it."""

from typing import Any, Final

import click

from msgtx import units
from msgtx.cli.terminal import completion
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.failure import FAILED
from msgtx.cli.terminal.interruption import stopping
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, write
from msgtx.cli.terminal.progress import progress
from msgtx.cli.terminal.quantities import milliseconds
from msgtx.rows import content_row, found_row, printable, time_text
from msgtx.types import FoundRecord, RecordOutcome

DAY_MS: Final = 86_400_000


def place(text: str) -> tuple[int, int]:
    """Read PARTITION:OFFSET."""
    partition, found, offset = text.partition(":")
    if not (found and all(part.isascii() and part.isdigit() for part in (partition, offset))):
        raise click.BadParameter(f"{text!r} is no PARTITION:OFFSET, such as 0:42")
    return int(partition), int(offset)


@click.command(
    "find",
    cls=Command,
    examples=(
        "msgtx find orders --json id=305",
        "msgtx find orders --key ada --since 7d",
        "msgtx find orders --header trace=4711 -o json",
        "msgtx find orders --offset 0:42",
        "msgtx find orders --json customer.id=17850 --partition 0 --before 4711",
    ),
)
@click.argument("topic", shell_complete=completion.topics)
@option("--key", metavar="TEXT", help="Records with this key.")
@option("--json", "json_", metavar="PATH=TEXT", help="Records whose value is JSON with this text there: customer.name=ada.")
@option("--header", metavar="NAME=TEXT", help="Records with this header.")
@option("--partition", type=click.IntRange(min=0), help="Look only there.")
@option("--offset", "at", type=place, metavar="PARTITION:OFFSET", help="The record at this place.")
@option("--before", type=click.IntRange(min=0), metavar="OFFSET", help="With --partition: only records in front of it.")
@option(
    "--since",
    type=milliseconds(),
    help="How long ago a record may have been stored: ms, or 1h, 7d.  [default: 1d; with --before any time]",
)
@option("--limit", type=click.IntRange(min=1, max=1000), default=10, help="The most records, the last stored ones.")
@option("--groups/--no-groups", default=True, help="With --before: without groups and dead letters.")
@pass_invocation
def command(
    invocation: Invocation,
    topic: str,
    *,
    key: str | None,
    json_: str | None,
    header: str | None,
    partition: int | None,
    at: tuple[int, int] | None,
    before: int | None,
    since: int | None,
    limit: int,
    groups: bool,
) -> int:
    """Find records of TOPIC; show the outcome of their transactions, and the progress of each group.

    All options that are given must fit; without any, these are the last records. Also open and aborted ones are shown, and
    said to be so. The topic is read from its end to its beginning, and no further than --since. Ctrl-C ends the search and
    shows what was found. The exit code is 1 if nothing was found.

    --before goes back in pages: a page has at most --limit records and some 4 MiB, and names the offset of the next one.

    To search for a key, a header or in values takes the right to consume the topic. The right to observe it shows places and
    states, but not what a record holds.
    """
    if at is not None and partition not in {None, at[0]}:
        raise click.UsageError("--offset names another partition than --partition")
    index, offset = at if at is not None else (partition, None)
    if before is not None and (index is None or offset is not None):
        raise click.UsageError("--before goes with --partition, and without --offset")
    if before is None and not groups:
        raise click.UsageError("--no-groups goes with --before")
    since = DAY_MS if since is None and before is None else since
    next_before: int | None = None
    with connect(invocation) as client, stopping() as stop:
        with progress(f"looking through {topic}") as told:
            asked: dict[str, Any] = {
                "key": key,
                "json": json_,
                "header": header,
                "since": None if since is None or at is not None else f"{since}ms",
                "limit": limit,
                "stop": stop,
                "progress": lambda count: told(count, f"{count} found"),
            }
            if before is None or index is None:
                found = client.find(topic, partition=index, offset=offset, **asked)
            else:
                page = client.find_before(topic, index, before=before, groups=groups, **asked)
                found, next_before = page.records, page.next_before
        if invocation.format == "table":
            write("\n".join(map(block, found)))
            if not found and not stop.is_set():
                click.echo(f"no record of {topic} fits{_where(at, before, since)}", err=True)
        else:
            show_many(invocation.format, map(found_row, found), ())
        if next_before is not None:
            click.echo(f"the search ended in front of offset {next_before}: --before {next_before} continues it", err=True)
        if stop.is_set():
            return stop.exit_code
        return 0 if found else FAILED


def _where(at: tuple[int, int] | None, before: int | None, since: int | None) -> str:
    front = "" if before is None else f" in front of offset {before}"
    if at is not None or since is None:
        return front
    return f"{front} in the last {units.lasting(since / 1_000)}; --since looks further back"


def block(found: FoundRecord) -> str:
    """Return a record, what became of it, and the progress of each group, as lines for people."""
    lines = [f"{found.topic}-{found.partition}@{found.offset}  {time_text(found.timestamp)}{_content('key', found.key)}"]
    if found.value is not None:
        lines.append(_content("value", found.value).strip())
    lines.append(_fate(found))
    if found.deliver_at is not None:
        lines.append(f"delayed until {time_text(found.deliver_at)}")
    width = max((len(each.group) for each in found.groups), default=0)
    if found.outcome is not RecordOutcome.ABORTED:
        lines += [f"{each.group:<{width}}  {each.told}" for each in found.groups]
    for letter in found.dead_letters:
        of = "" if letter.group is None else f" of {letter.group}"
        why = "" if letter.reason is None else f": {letter.reason}"
        lines.append(f"dead letter{of} at {letter.topic}-{letter.partition}@{letter.offset}{why}")
    return "".join(f"{'' if number == 0 else '  '}{printable(line)}\n" for number, line in enumerate(lines))


def _fate(found: FoundRecord) -> str:
    if found.transaction_id is None:
        return "committed"
    of = f"transaction {found.transaction_id}" + (f" of {found.transactional_id!r}" if found.transactional_id else "")
    when = "" if found.decided_at is None else f" at {time_text(found.decided_at)}"
    match found.outcome:
        case RecordOutcome.COMMITTED | RecordOutcome.ABORTED:
            return f"{found.outcome} by {of}{when}" + (
                "" if found.outcome is RecordOutcome.COMMITTED else ": no group gets it"
            )
        case _:
            return f"in {of}, which is {found.outcome}: no group gets it before the decision"


def _content(name: str, content: bytes | None) -> str:
    ((_, text),) = content_row(name, content).items()
    return "" if text is None else f"  {name} {text}"
