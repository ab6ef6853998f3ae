"""`msgtx transactions`: open transactions, the outcome of one, and ending one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from msgtx import units
from msgtx.changes import Preview, preview
from msgtx.cli.terminal import completion
from msgtx.cli.terminal.confirmation import carry_out, confirmed, destructive
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.failure import FAILED
from msgtx.cli.terminal.invocation import Group, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one, write
from msgtx.cli.terminal.quantities import Quantity, milliseconds
from msgtx.rows import prepared_row, printable, row_of, row_with_times, time_text
from msgtx.rules.names import producer_named
from msgtx.rules.transaction import SORTS, State
from msgtx.types import (
    BlockingTransaction,
    Outcome,
    PreparedTransaction,
    ProducerHistory,
    ShownAcknowledgement,
    ShownOffset,
    ShownPartition,
    ShownTransaction,
    TopicPartition,
    TransactionId,
)

if TYPE_CHECKING:
    from msgtx.client import Client

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
@option("--prefix", default="", help="Only transactional ids that begin with this.")
@option("--sort", type=click.Choice(SORTS), default=SORTS[0], help="The order; with a -, the other direction.")
@option("--after", type=int, metavar="PRODUCER_ID", help="Begin behind this producer, for the next page.")
@option("--most", type=click.IntRange(min=1), help="The most producers.  [default: all]")
@pass_invocation
def list_transactions(
    invocation: Invocation,
    /,
    state: tuple[str, ...],
    producer_id: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str | None,
    **asked: Any,
) -> None:
    """List producers with the state of their newest transaction."""
    with connect(invocation) as client:
        found = client.admin.transactions.list(state, producer_id, longer_than_ms, pattern, **asked)
    show_many(invocation.format, map(row_of, found), ("transactional_id", "producer_id", "state"))


@command.command("describe")
@click.argument("transactional_id")
@pass_invocation
def describe(invocation: Invocation, transactional_id: str) -> None:
    """Describe a transactional id and its newest transaction."""
    with connect(invocation) as client:
        found = client.admin.transactions.describe(transactional_id)
    show_one(invocation.format, row_of(found))


@command.command("show")
@click.argument("transaction", metavar="ID")
@option("--skip", type=click.IntRange(min=0), default=0, help="Leave out so many partitions, for the next page.")
@option("--most", type=click.IntRange(min=1), default=1000, help="The most partitions.")
@pass_invocation
def show(invocation: Invocation, transaction: str, *, skip: int, most: int) -> None:
    """Show all that is stored of the transaction ID: its timeline, its records, its offsets.

    ID is a transaction (producer_id.epoch.number), or a transactional id: then it is the newest one of that.
    """
    with connect(invocation) as client:
        found = client.admin.transactions.show(transaction, skip=skip, most=most)
        while found.offsets_next is not None:
            more = client.admin.transactions.show(
                found.transaction_id, skip=found.partition_count, offsets_after=found.offsets_next
            )
            found = replace(found, offsets=[*found.offsets, *more.offsets], offsets_next=more.offsets_next)
    if invocation.format == "table":
        write("".join(f"{printable(line)}\n" for line in _block(found)))
    else:
        show_one(invocation.format, row_with_times(found))


def _block(found: ShownTransaction) -> Iterator[str]:
    of = "" if found.transactional_id is None else f" of {found.transactional_id!r}"
    yield f"transaction {found.transaction_id}{of}  {found.state}"
    if found.outcome is Outcome.OPEN and found.deadline is not None:
        yield f"  is aborted at {time_text(found.deadline)} if nothing else ends it"
    if found.database_backend is not None:
        yield f"  opened in database session {found.database_backend}"
    if found.app_id is not None:
        query = f", query {found.query_id}" if found.query_id else ""
        yield f"  written by Spark: application {found.app_id}{query}, batch {found.batch_id}"
    for each in found.partitions:
        yield f"  {_written(each)}"
    if (left := found.partition_count - len(found.partitions)) > 0:
        yield f"  and {units.counted(left, 'other partition')}: --skip, -o json"
    yield from _with_it(found.offsets, found.acknowledgements)
    yield "timeline"
    for event in found.events:
        yield f"  {'' if event.at is None else time_text(event.at):<24}  {event.told}"


def _with_it(offsets: Sequence[ShownOffset], acknowledgements: Sequence[ShownAcknowledgement]) -> Iterator[str]:
    for each in offsets:
        yield f"  group {each.group}  {each.topic}-{each.partition}@{each.offset}"
    for answer in acknowledgements:
        place = f"{answer.topic}-{answer.partition}"
        yield f"  share group {answer.group}  {place} {answer.first_offset} to {answer.last_offset}: {answer.answer}"


def _written(each: ShownPartition) -> str:
    place = "a deleted topic" if each.topic is None else f"{each.topic}-{each.partition}"
    line = f"{place}  offsets {each.first_offset} to {'?' if each.last_offset is None else each.last_offset}"
    if each.records is not None:
        about = "about " if each.is_estimate else ""
        line += f", {about}{units.counted(each.records, 'record')} of {each.bytes} bytes"
    why = {
        "topic": ", whose records are gone",
        "retention": ", those below the log start were removed by retention or `topics delete-records`",
        "compaction": ", the others were removed by compaction",
    }
    return line + why.get(each.removed or "", "")


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


@command.command("blocking")
@click.argument("transaction", metavar="[ID]", required=False)
@option("--most", type=click.IntRange(min=1), default=100, help="The most transactions, the oldest ones.")
@pass_invocation
def blocking(invocation: Invocation, transaction: str | None, *, most: int) -> None:
    """Show the transactions that hold partitions back, all that waits for their end, and how to end each.

    With ID, only this one: a transaction (producer_id.epoch.number), or a transactional id with its newest one. Nothing is
    printed if nothing waits for its end.
    """
    with connect(invocation) as client:
        found = client.admin.transactions.blocking(most, transaction=transaction)
    if invocation.format == "table":
        write("\n".join("".join(f"{printable(line)}\n" for line in _blocked(one)) for one in found))
    else:
        show_many(invocation.format, map(row_with_times, found), ())


def _blocked(found: BlockingTransaction) -> Iterator[str]:
    of = "" if found.transactional_id is None else f" of {found.transactional_id!r}"
    age = "" if found.age_ms is None else f" for {units.lasting(found.age_ms / 1_000)}"
    limit = "" if found.timeout_ms is None else f", its timeout is {units.lasting(found.timeout_ms / 1_000)}"
    yield f"transaction {found.transaction_id}{of} is {found.state}{age}{limit}"
    if found.client_host is not None:
        yield f"  opened by process {found.client_process} on {found.client_host}"
    for each in found.partitions:
        waiting = units.counted(each.records_waiting, "record")
        yield f"  {each.topic}-{each.partition}  readers stop at offset {each.last_stable_offset} in front of {waiting}"
        for group in each.groups:
            since = "" if group.since is None else f" since {time_text(group.since)}"
            yield f"    group {group.group} waits{since}"
        if not each.groups_searched:
            yield "    the groups that wait here were not looked for"
    yield from _with_it(found.offsets, found.acknowledgements)
    if (session := found.session) is not None:
        state = (session.state or "without a state") if session.visible else "hidden from this role"
        since = "" if session.state_since is None else f" since {time_text(session.state_since)}"
        yield f"  database session {session.pid} of {session.role}: {state}{since}"
        if session.wait_event is not None:
            yield f"    waits in {session.wait_event}"
        if session.query:
            yield f"    query: {session.query}"
    yield f"  to end it: {found.advice}"


@command.command("history")
@click.argument("producer", metavar="ID")
@option("--before", type=click.IntRange(min=0), help="Only epochs below this one, for the next page.")
@option("--most", type=click.IntRange(min=1), default=100, help="The most epochs, the newest ones.")
@pass_invocation
def history(invocation: Invocation, producer: str, *, before: int | None, most: int) -> None:
    """Show the epochs of a producer over time, their transactions, and who fenced whom.

    ID is a producer id (a number) or a transactional id.
    """
    with connect(invocation) as client:
        found = client.admin.producers.history(producer_named(producer), epochs_before=before, most=most)
    if invocation.format == "table":
        write("".join(f"{printable(line)}\n" for line in _epochs(found)))
    else:
        show_one(invocation.format, row_with_times(found))


def _epochs(found: ProducerHistory) -> Iterator[str]:
    of = "" if found.transactional_id is None else f" of {found.transactional_id!r}"
    yield f"producer {found.producer_id}{of}  epoch {found.current_epoch} since {time_text(found.initialized_at)}"
    for each in found.epochs:
        yield f"epoch {each.epoch}{'  (current)' if each.is_current else ''}"
        if each.client_host is not None:
            yield f"  process {each.client_process} on {each.client_host}"
        if each.first_at is not None and each.last_at is not None:
            numbers = f"transactions {each.first_number} to {each.last_number}"
            yield f"  {numbers}, {time_text(each.first_at)} to {time_text(each.last_at)}"
        if each.counted_from is not None:
            since = f", from {each.counted_from} on" if each.counted_from != each.first_number else ""
            yield f"  {each.committed:,} committed, {each.aborted:,} aborted{since}"
        if each.is_open:
            yield f"  {each.last_number} is open"
        if each.fenced_by is not None:
            yield f"  fenced by {each.fenced_by}"
        if each.raised_from is not None:
            yield f"  the producer began it by itself, after epoch {each.raised_from}"
    if found.epochs_before is not None:
        yield f"older epochs: --before {found.epochs_before}"
    for place in found.sequences:
        known = "not known there any more" if place.last_sequence is None else f"last sequence {place.last_sequence}"
        yield f"{place.topic}-{place.partition}  {known}"


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
        asked = preview(client, "transactions abort", transaction_id=transaction_id)
        _carry_out(invocation, client, asked, dry_run=dry_run, yes=yes)


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
        asked = preview(client, "transactions complete", token=token, commit=commit)
        _carry_out(invocation, client, asked, dry_run=dry_run, yes=yes)


@command.command("fence")
@click.argument("transactional_id")
@destructive
@pass_invocation
def fence(invocation: Invocation, transactional_id: str, *, dry_run: bool, yes: bool) -> None:
    """Fence the producer that uses a transactional id now, and abort its open transaction."""
    with connect(invocation) as client:
        asked = preview(client, "transactions fence", transactional_id=transactional_id)
        _carry_out(invocation, client, asked, dry_run=dry_run, yes=yes)


def _carry_out(invocation: Invocation, client: "Client", asked: Preview, *, dry_run: bool, yes: bool) -> None:
    if not confirmed(asked.says, dry_run=dry_run, yes=yes or not asked.asks):
        return
    if (row := carry_out(client, asked, yes=yes)) is not None:
        show_one(invocation.format, row)
