"""`msgtx groups`: groups, their members and lag, and resets of their offsets."""

from typing import Any, Final

import click

from msgtx.changes import known_group, preview
from msgtx.cli.commands.resets import reset_group, reset_options, topic_option
from msgtx.cli.terminal import completion
from msgtx.cli.terminal.confirmation import carry_out, carry_out_each, confirmed, destructive
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.invocation import Group, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one, show_table
from msgtx.rows import group_row, member_rows, row_of
from msgtx.rules.group import GroupStatus
from msgtx.scopes import Scopes

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


@click.group("groups", cls=Group)
def command() -> None:
    """Look at consumer groups, and reset their offsets."""


@command.command("list")
@option(
    "--state",
    multiple=True,
    type=click.Choice([str(state) for state in GroupStatus]),
    help="Only groups in this state; may be repeated.  [default: all but Dead]",
)
@pass_invocation
def list_groups(invocation: Invocation, state: tuple[str, ...]) -> None:
    """List the groups. `members` counts the members whose session has not expired."""
    with connect(invocation) as client:
        found = client.admin.groups.list(state)
    show_many(invocation.format, map(row_of, found), ("group", "state", "strategy", "members"))


@command.command("lag")
@pass_invocation
def lag(invocation: Invocation) -> None:
    """List the groups with their lag: quicker than `describe`, and less exact.

    `lag` counts the records behind the group's positions, aborted ones too; `lag_ms` is the age of the oldest batch of them.
    It takes the right to observe every topic.
    """
    with connect(invocation) as client:
        found = client.admin.groups.lags()
    show_many(invocation.format, map(row_of, found), ("group", "lag", "lag_ms"))


@command.command("describe")
@click.argument("group", shell_complete=completion.groups)
@pass_invocation
def describe(invocation: Invocation, group: str) -> None:
    """Show how far a group is on each partition, and who owns it.

    `lag` counts the records that are still to be delivered at read_committed: aborted records do not count, so it is 0 when
    the group has caught up. `lag_ms` is the age of the first of these records; for the group, it is that of the oldest.
    """
    with connect(invocation) as client:
        found = known_group(client, group)
    summary = group_row(found)
    rows = summary["partitions"]
    if invocation.format == "table":
        show_one("table", {**summary, "partitions": len(rows)})
        show_table(PARTITION_COLUMNS, [[row[column] for column in PARTITION_COLUMNS] for row in rows])
    else:
        show_one(invocation.format, summary)


@command.command("members")
@click.argument("group", shell_complete=completion.groups)
@pass_invocation
def members(invocation: Invocation, group: str) -> None:
    """Show the members of a group, and the partitions of each: now, and once others have released theirs."""
    with connect(invocation) as client:
        known_group(client, group)
        found = client.admin.groups.members(group)
    show_many(invocation.format, member_rows(group, found), MEMBER_COLUMNS)


@command.command(
    "reset-offsets",
    examples=(
        "msgtx groups reset-offsets billing --topic orders --to-earliest --dry-run",
        "msgtx groups reset-offsets billing --all-topics --by-duration 2h",
        "msgtx groups reset-offsets billing --all-topics --to-current --export > offsets.csv",
        "msgtx groups reset-offsets billing --from-file offsets.csv",
    ),
)
@click.argument("group", shell_complete=completion.groups)
@reset_options
@pass_invocation
def reset_offsets(invocation: Invocation, /, group: str, **given: Any) -> None:
    """Reset a group's offsets: show what would be changed, and ask.

    Give exactly one target, and --topic or --all-topics (but neither with --from-file). An offset outside the log is moved
    to the nearest end of the log, and a note says so. The group must have no members; it need not exist.
    """
    with connect(invocation) as client:
        reset_group(invocation, client, "groups reset-offsets", group, given)


@command.command("delete")
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=completion.groups)
@destructive
@pass_invocation
def delete(invocation: Invocation, groups: tuple[str, ...], *, dry_run: bool, yes: bool) -> None:
    """Delete groups with their offsets. The groups must have no members."""
    with connect(invocation) as client:
        asked = [preview(client, "groups delete", group=group) for group in dict.fromkeys(groups)]
        carry_out_each(client, asked, dry_run=dry_run, yes=yes)


@command.command("delete-offsets")
@click.argument("group", shell_complete=completion.groups)
@topic_option
@destructive
@pass_invocation
def delete_offsets(invocation: Invocation, group: str, scopes: Scopes, *, dry_run: bool, yes: bool) -> None:
    """Delete a group's offsets, including those that wait for the decision of a transaction.

    If a living member owns one of the partitions, the command is refused and deletes nothing.
    """
    if not scopes:
        raise click.UsageError("give --topic")
    with connect(invocation) as client:
        asked = preview(client, "groups delete-offsets", group=group, scopes=scopes)
        show_many(invocation.format, asked.rows, asked.columns)
        if asked.asks and confirmed(asked.says, dry_run=dry_run, yes=yes):
            carry_out(client, asked, yes=yes)
