"""What is stored when all has ended: both isolations read from the beginning, ends, group offsets, outcomes."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgtx import Client, Isolation, TopicPartition
from tests.histories.history import ID, History
from tests.histories.recorded import text_of
from tests.histories.relays import RELAY_GROUP

PATIENCE_SECONDS: Final = 60.0
OUTCOMES: Final = """
    select n.name, o.outcome from pg_catalog.unnest(%s::pg_catalog.text[]) n(name)
    cross join lateral pg_catalog.string_to_array(n.name, '.') p(parts)
    cross join lateral msgtx.transaction_outcome(
        p.parts[1]::pg_catalog.int8, p.parts[2]::pg_catalog.int4, p.parts[3]::pg_catalog.int8) o
"""
SPELT: Final = {"COMMIT": "COMMITTED", "ABORT": "ABORTED"}
Log = dict[TopicPartition, list[tuple[int, str]]]


@dataclass(frozen=True)
class Settled:
    """The end of a run. `outcomes` by the name of the transaction, as users see it."""

    committed: Mapping[TopicPartition, Sequence[tuple[int, str]]]
    everything: Mapping[TopicPartition, Sequence[tuple[int, str]]]
    ends: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)  # last stable offset, log end
    offsets: Mapping[tuple[str, TopicPartition], int] = field(default_factory=dict)
    outcomes: Mapping[str, str] = field(default_factory=dict)
    open_transactions: Sequence[str] = ()
    violations: Sequence[str] = ()  # findings of `verify`, the library's own check of its data
    purged: bool = False  # an outcome that is UNKNOWN may have been forgotten
    members: Mapping[str, int] = field(default_factory=dict)  # members left in groups whose members have all ended
    rows: Sequence[str] = ()  # of users' tables


def read_log(client: Client, partitions: Sequence[TopicPartition], isolation: Isolation) -> Log:
    """Read everything that this isolation may see, with a fresh consumer."""
    log: Log = {partition: [] for partition in partitions}
    with client.consumer(isolation=isolation, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(consumer.position(partition) < end for partition, end in ends.items()) and time.monotonic() < deadline:
            for record in consumer.poll(0.1, 10_000):
                log[TopicPartition(record.topic, record.partition)].append((record.offset, text_of(record.value)))
    return log


def members_left(client: Client, group: str) -> int:
    """Return how many members a group keeps: one that was killed goes when its session is over."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := client.admin.groups.describe(group).members) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def settled(
    client: Client,
    history: History,
    *,
    partitions: Sequence[TopicPartition],
    groups: Mapping[str, Sequence[TopicPartition]],
    topics: Iterable[str] | None = None,
    ids: Collection[str] | None = None,
    undecided: Collection[str] = ("Ongoing", "Prepared"),
    rows: Sequence[str] = (),
    purged: bool = False,
) -> Settled:
    """Read the end of a run. `topics`: that are verified; `ids`: of producers in none of these states; None: all."""
    told = [operation.arguments["transaction"] for operation in history.kind("send", "commit", "abort", "outcome")]
    asked = {text.partition(" ")[0] for text in told if text is not None}
    named = {name for operation in history.kind("view") for name in operation.answer.get("transactions", ())}
    names = sorted(filter(ID.fullmatch, asked | named))
    ends = client.admin.partitions.offsets(sorted({tp.topic for tp in partitions}), -1, Isolation.READ_COMMITTED)
    offsets: dict[tuple[str, TopicPartition], int] = {}
    for group, of_group in groups.items():
        with client.consumer(group=group, enable_auto_commit=False) as member:
            found = member.committed(of_group)
            offsets.update({(group, partition): at.offset for partition, at in found.items() if at is not None})
    with client.runtime.engine.connection() as connection:
        outcomes = {name: SPELT.get(outcome, outcome) for name, outcome in connection.execute(OUTCOMES, [names]).fetchall()}
    for unknown in (operation for operation in history.kind("commit") if not operation.ok):
        name = unknown.arguments["transaction"].partition(" ")[0]
        if name in outcomes:
            outcomes[name] = str(client.transaction_outcome(name))  # as its application would ask
    return Settled(
        committed=read_log(client, partitions, Isolation.READ_COMMITTED),
        everything=read_log(client, partitions, Isolation.READ_UNCOMMITTED),
        ends={partition: (ends[partition].last_stable_offset, ends[partition].log_end_offset) for partition in partitions},
        offsets=offsets,
        outcomes=outcomes,
        open_transactions=[
            str(each) for each in client.admin.transactions.list(undecided) if ids is None or each.transactional_id in ids
        ],
        members={group: members_left(client, group) for group in groups if group == RELAY_GROUP},
        violations=[str(violation) for violation in client.admin.verify(topics).violations],
        purged=purged,
        rows=rows,
    )
