"""`msgtx shares`: share groups, their settings and their dead letters."""

from typing import Any, Final

import click

from msgtx.changes import Control, apply, perform, preview, share_now
from msgtx.cli.commands.resets import reset_group, reset_options
from msgtx.cli.terminal import completion
from msgtx.cli.terminal.confirmation import carry_out_each, confirmed, destructive
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.interruption import stopping
from msgtx.cli.terminal.invocation import Group, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one, show_table
from msgtx.cli.terminal.progress import progress
from msgtx.cli.terminal.setting_options import setting_options
from msgtx.declared.settings import SHARE_GROUP
from msgtx.rows import SHARE_COLUMNS, SHARE_PARTITION_COLUMNS, listed_share_row, share_row
from msgtx.types import ShareGroupDescription

PARTITION_COLUMNS: Final = ("group", *SHARE_PARTITION_COLUMNS)


@click.group("shares", cls=Group)
def command() -> None:
    """Look at share groups, change their settings, and send their dead letters back."""


@command.command("list")
@pass_invocation
def list_groups(invocation: Invocation) -> None:
    """List the share groups.

    `members` counts the living members, `dead_letters` the dead letters that were not sent back.
    """
    with connect(invocation) as client:
        found = client.admin.shares.list()
    show_many(invocation.format, map(listed_share_row, found), SHARE_COLUMNS)


@command.command("describe")
@click.argument("group", shell_complete=completion.shares)
@pass_invocation
def describe(invocation: Invocation, group: str) -> None:
    """Show a share group: its settings, and on each partition what is in flight.

    Below `start_offset`, all records are done; from `next_offset` on, none has been delivered yet. Between them, a record is
    available (again), acquired by a member, pending in a transaction, rejected but not yet written as a dead letter, parked
    (delayed, or waiting for an earlier record with its key), or done. `lag` counts the records there that are not done, and
    all records behind them; `lag_ms` is the age of the first of these.
    """
    with connect(invocation) as client:
        _show(invocation, client.admin.shares.describe(group))


def _show(invocation: Invocation, found: ShareGroupDescription) -> None:
    summary = share_row(found)
    rows = summary["partitions"]
    if invocation.format == "table":
        settings = summary.pop("settings")
        show_one("table", {**summary, "partitions": len(rows), **settings})
        show_table(PARTITION_COLUMNS, [[row[column] for column in PARTITION_COLUMNS] for row in rows])
    else:
        show_one(invocation.format, summary)


@command.command(
    "configure",
    examples=(
        "msgtx shares configure workers --auto-offset-reset earliest --delivery-count-limit 3",
        "msgtx shares configure workers --record-lock-duration-ms 5min --release-backoff-ms 1s",
    ),
)
@click.argument("group", shell_complete=completion.shares)
@setting_options(SHARE_GROUP)
@pass_invocation
def configure(invocation: Invocation, /, group: str, **settings: Any) -> None:
    """Change settings of a share group, and show it. A group that does not exist is created.

    Settings that you do not name stay as they are. --auto-offset-reset, --isolation and --ordering can be changed only
    while the group has no members. An empty --dead-letter-topic stands for the default.
    """
    given: Any = {name: value for name, value in settings.items() if value is not None}
    if not given:
        raise click.UsageError("say what to change")
    given |= {"dead_letter_topic": None} if given.get("dead_letter_topic") == "" else {}
    with connect(invocation) as client:
        client.admin.shares.configure(group, given)
        _show(invocation, share_now(client, group))


@command.command(
    "reset-offsets",
    examples=("msgtx shares reset-offsets workers --topic orders --by-duration 1h",),
)
@click.argument("group", shell_complete=completion.shares)
@reset_options
@pass_invocation
def reset_offsets(invocation: Invocation, /, group: str, **given: Any) -> None:
    """Reset a share group's offsets: show what would be changed, and ask.

    Give exactly one target, and --topic or --all-topics (but neither with --from-file). An offset outside the log is moved
    to the nearest end of the log, and a note says so. From the new offset on, every record is delivered as if for the first
    time, even one that was already done. The group must have no members.
    """
    with connect(invocation) as client:
        reset_group(invocation, client, "shares reset-offsets", group, given)


@command.command("delete")
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=completion.shares)
@destructive
@pass_invocation
def delete(invocation: Invocation, groups: tuple[str, ...], *, dry_run: bool, yes: bool) -> None:
    """Delete share groups with their settings and state. They must have no members; their dead letters stay."""
    with connect(invocation) as client:
        asked = [preview(client, "shares delete", group=group) for group in dict.fromkeys(groups)]
        carry_out_each(client, asked, dry_run=dry_run, yes=yes)


@command.command(
    "redrive",
    examples=(
        "msgtx consume workers-dead-letters --from-beginning --no-follow -o jsonl",
        "msgtx shares redrive workers --max-messages 10",
    ),
)
@click.argument("group", shell_complete=completion.shares)
@option("--max-messages", type=click.IntRange(min=0), help="End after this many dead letters.")
@option("--skip-missing", is_flag=True, help="Pass over dead letters whose topic is gone.")
@destructive
@pass_invocation
def redrive(
    invocation: Invocation, group: str, *, max_messages: int | None, skip_missing: bool, dry_run: bool, yes: bool
) -> int:
    """Send a share group's dead letters back to the topics that they came from, each once. Asks first.

    They become new records of that topic, for all of its readers, with key, value and headers as they were and the current
    time. Records that become dead letters again meanwhile are left. Ctrl-C (exit code 130) ends the command after the
    current step of up to 1,000 dead letters; run it again, and it continues from there.
    """
    with connect(invocation) as client:
        given = {"group": group, "max_records": max_messages, "skip_missing": skip_missing}
        asked = None if yes and not dry_run else preview(client, "shares redrive", **given)
        if asked is not None and not confirmed(asked.says, dry_run=dry_run, yes=yes):
            return 0
        with stopping() as stop, progress("dead letters") as told:
            control = Control(stop, lambda sent: told(sent, f"{sent} sent back"))
            row = perform(client, "shares redrive", given, control) if asked is None else apply(client, asked, control)
        assert row is not None
        show_one(invocation.format, row)
        return stop.exit_code if stop.is_set() else 0
