"""`msgtx sweep`."""

import click

from msgtx.cli.database import connect
from msgtx.cli.options import Command, Invocation, option, pass_invocation
from msgtx.cli.output import row_of, show_one


@click.command("sweep", cls=Command)
@option("--only", multiple=True, metavar="NAME", help="Only this sweep (repeatable): one of the names below.")
@option("--dry-run", is_flag=True, help="Tell what would be done, and take it back.")
@pass_invocation
def command(invocation: Invocation, *, only: tuple[str, ...], dry_run: bool) -> None:
    """Do one round of everything that time brings, to its end. For cron; a coordinator daemon does the same.

    \b
    overdue     abort transactions that are past their timeout
    markers     write missing markers, move the floors
    seals       remove seals of decided transactions, offsets that waited for an ABORT
    deleted     remove what deleted topics have left of their logs
    retention   remove batches past their topic's retention, or below log start
    compaction  remove records of compacted topics that newer ones supersede
    ids         remove transactional ids and producer ids that are idle too long
    history     purge complete transactions past transaction_history_ms
    offsets     remove committed offsets for which newer ones count, or past offsets_retention_ms
    floors      remove floors below the newest of their partition
    members     remove members whose session is over from their groups
    heartbeats  remove heartbeats below the newest of their member
    spark       remove what Spark's batches left: decided attempts, superseded rows
    dedup       remove keys of deduplication past dedup_window_ms

    It tries locks and never waits for one; it may run beside clients, daemons
    and itself.
    """  # noqa: D301 - \b is click's mark for text that is not filled
    with connect(invocation) as client:
        report = client.sweep(only=only, dry_run=dry_run)
    show_one(invocation.format, row_of(report))
