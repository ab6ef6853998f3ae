"""`msgtx sweep`."""

import click

from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_one
from msgtx.rows import row_of


@click.command("sweep", cls=Command)
@option("--only", multiple=True, metavar="NAME", help="Do only this sweep (repeatable): one of the names above.")
@option("--dry-run", is_flag=True, help="Show what would be done; roll it back.")
@option("--full-speed", is_flag=True, help="Do not pause, and end when all is done.")
@pass_invocation
def command(invocation: Invocation, *, only: tuple[str, ...], dry_run: bool, full_speed: bool) -> None:
    """Do one complete round of upkeep. Meant for cron; a coordinator daemon does the same.

    \b
    overdue     abort transactions that are past their timeout
    markers     write missing markers, move the floors
    seals       remove seals of decided transactions, and offsets of aborted ones
    deleted     remove what is left of the logs of deleted topics
    retention   remove batches past their topic's retention, or below log start
    compaction  remove records of compacted topics that newer ones supersede
    ids         remove transactional ids and producer ids idle for too long
    history     remove complete transactions past transaction_history_ms
    offsets     remove offsets that newer ones supersede, or that are too old
    floors      remove floors older than the newest of their partition
    members     remove members whose session has expired from their groups
    heartbeats  remove heartbeats older than the newest of their member
    spark       remove rows of Spark's batches: decided attempts, superseded rows
    dedup       remove deduplication keys past dedup_window_ms

    It never waits for a lock, so it may run beside clients, coordinators and
    other sweeps. It removes and compacts at most sweep_max_bytes_per_second, so
    that senders do not wait. What is left after 50 s is for the next sweep;
    sweeps_unfinished counts such sweeps.
    """  # noqa: D301 - \b is click's mark for text that is not filled
    with connect(invocation) as client:
        report = client.sweep(only=only, dry_run=dry_run, full_speed=full_speed)
    show_one(invocation.format, row_of(report))
