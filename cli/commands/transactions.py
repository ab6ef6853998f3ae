"""`msgtx transactions`: open transactions, the outcome of one, and ending one."""

from functools import partial
from typing import Final

import click

from msgtx import units
from msgtx.cli.terminal import completion
from msgtx.cli.terminal.confirmation import confirmed, destructive
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.failure import FAILED
from msgtx.cli.terminal.invocation import Group, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one
from msgtx.cli.terminal.quantities import Quantity, milliseconds
from msgtx.rows import prepared_row, row_of
from msgtx.rules.transaction import State
from msgtx.types import Outcome, PreparedTransaction, TopicPartition, TransactionId

# Kafka's columns, in Kafka's order.
PRODUCER_COLUMNS: Final = (
    "partition",
    "producer_id",
    "epoch",
    "coordinator_epoch",
    "last_sequence",
    "last_timestamp",
    "transaction_start_offset",
)
HANGING_COLUMNS: Final = (
    "topic",
    "partition",
    "transaction_id",
    "transactional_id",
    "coordinator_epoch",
    "start_offset",
    "last_timestamp",
    "duration_ms",
    "reason",
    "advice",
)


def transaction_name(text: str) -> TransactionId:
    """Read a transaction id, as `describe` shows it."""
    try:
        return TransactionId.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def prepared_token(text: str) -> PreparedTransaction:
    """Read the token of a prepared transaction."""
    try:
        return PreparedTransaction.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.group("transactions", cls=Group)
def command() -> None:
    """Look at transactions, and end them."""


@command.command("list")
@option("--state", multiple=True, type=click.Choice([str(state) for state in State]))
@option("--producer-id", multiple=True, type=int)
@option("--longer-than-ms", type=milliseconds(), help="Only transactions that have been open for longer: ms, or 10s, 1h.")
@option("--pattern", help="Only transactional ids that this regular expression matches as a whole.")
@pass_invocation
def list_transactions(
    invocation: Invocation,
    state: tuple[str, ...],
    producer_id: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str | None,
) -> None:
    """List producers with the state of their newest transaction."""
    with connect(invocation) as client:
        found = client.admin.transactions.list(state, producer_id, longer_than_ms, pattern)
    show_many(invocation.format, map(row_of, found), ("transactional_id", "producer_id", "state"))


@command.command("describe")
@click.argument("transactional_id")
@pass_invocation
def describe(invocation: Invocation, transactional_id: str) -> None:
    """Describe a transactional id and its newest transaction."""
    with connect(invocation) as client:
        found = client.admin.transactions.describe(transactional_id)
    show_one(invocation.format, row_of(found))


@command.command("describe-producers")
@click.argument("topic", shell_complete=completion.topics)
@option("--partition", type=click.IntRange(min=0), help="Only this partition.  [default: all]")
@pass_invocation
def describe_producers(invocation: Invocation, topic: str, partition: int | None) -> None:
    """Show the producers that each partition of TOPIC knows, and where their open transactions begin."""
    with connect(invocation) as client:
        indexes = range(client.topics.describe(topic).partitions) if partition is None else [partition]
        rows = [
            {"partition": index, **row_of(state)}
            for index in indexes
            for state in client.admin.producers.describe(TopicPartition(topic, index))
        ]
    show_many(invocation.format, rows, PRODUCER_COLUMNS)


@command.command("find-hanging")
@option("--topic", help="Look only at this topic.  [default: all]")
@option("--partition", type=click.IntRange(min=0), help="Look only at this partition of the topic.")
@option(
    "--max-transaction-timeout",
    type=Quantity("duration", partial(units.milliseconds, unit="min"), 0),
    help="How long is too long: minutes, or 90s, 1h.  [default: each transaction's own timeout]",
)
@pass_invocation
def find_hanging(
    invocation: Invocation, topic: str | None, partition: int | None, max_transaction_timeout: int | None
) -> None:
    """Find transactions that have been undecided for too long, and say why and how to end them."""
    with connect(invocation) as client:
        found = client.admin.transactions.find_hanging(max_transaction_timeout, topic=topic, partition=partition)
    show_many(invocation.format, map(row_of, found), HANGING_COLUMNS)


@command.command("outcome")
@click.argument("transaction_id", type=transaction_name, metavar="ID")
@option("--resolve", is_flag=True, allow_from_autoenv=False, help="Abort the transaction if it is still open.")
@pass_invocation
def outcome(invocation: Invocation, transaction_id: TransactionId, *, resolve: bool) -> int:
    """Show how the transaction ID (producer_id.epoch.number) ended, and who decided that.

    UNKNOWN (exit code 1): it never began, or its producer's history has expired.
    """
    with connect(invocation) as client:
        if resolve:
            client.transaction_outcome(transaction_id, resolve=True)
        decision = client.admin.transactions.outcome(transaction_id)
    show_one(invocation.format, {"transaction_id": transaction_id, **row_of(decision)})
    return FAILED if decision.outcome is Outcome.UNKNOWN else 0


@command.command("abort")
@click.argument("transaction_id", type=transaction_name, metavar="ID")
@destructive
@pass_invocation
def abort(invocation: Invocation, transaction_id: TransactionId, *, dry_run: bool, yes: bool) -> None:
    """Abort the transaction ID (producer_id.epoch.number). Its producer can carry on."""
    with connect(invocation) as client:
        decision = client.admin.transactions.outcome(transaction_id)
        # A decided transaction needs no question: the call is refused, or already done.
        what = f"abort transaction {transaction_id} ({decision.outcome})"
        if not confirmed(what, dry_run=dry_run, yes=yes or decision.outcome is not Outcome.OPEN):
            return
        client.admin.transactions.abort(transaction_id)
        decision = client.admin.transactions.outcome(transaction_id)
    show_one(invocation.format, {"transaction_id": transaction_id, **row_of(decision)})


@command.command("prepared")
@pass_invocation
def prepared(invocation: Invocation) -> None:
    """List transactions that wait for an outside decision, with their tokens for `complete`."""
    with connect(invocation) as client:
        found = client.admin.transactions.prepared()
    show_many(
        invocation.format,
        map(prepared_row, found),
        ("token", "transactional_id", "prepared_at", "partitions", "client_host"),
    )


@command.command("complete")
@click.argument("token", type=prepared_token, metavar="TOKEN")
@option("--commit/--abort", required=True, help="How the other system has decided.")
@destructive
@pass_invocation
def complete(invocation: Invocation, token: PreparedTransaction, *, commit: bool, dry_run: bool, yes: bool) -> None:
    """Decide the prepared transaction with this TOKEN, as the other system has decided. May be repeated."""
    with connect(invocation) as client:
        decision = client.admin.transactions.outcome(token.transaction_id)
        what = f"{'commit' if commit else 'abort'} transaction {token.transaction_id} ({decision.outcome})"
        if not confirmed(what, dry_run=dry_run, yes=yes or decision.outcome is not Outcome.OPEN):
            return
        client.complete(token, commit=commit)
        decision = client.admin.transactions.outcome(token.transaction_id)
    show_one(invocation.format, {"transaction_id": token.transaction_id, **row_of(decision)})


@command.command("fence")
@click.argument("transactional_id")
@destructive
@pass_invocation
def fence(invocation: Invocation, transactional_id: str, *, dry_run: bool, yes: bool) -> None:
    """Fence the producer that uses a transactional id now, and abort its open transaction."""
    with connect(invocation) as client:
        found = client.admin.transactions.describe(transactional_id)
        what = f"fence {transactional_id!r} (producer {found.producer_id}, epoch {found.producer_epoch}, {found.state})"
        if not confirmed(what, dry_run=dry_run, yes=yes):
            return
        fenced = client.admin.transactions.fence(transactional_id)
    show_one(invocation.format, {"transactional_id": transactional_id, **fenced._asdict()})
