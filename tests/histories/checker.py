"""The offline checker: a history and its end in, anomalies out, named as in Jepsen where it has a name.

Nothing here asks the library: promises are checked against what was recorded and what is stored at the end.
"""

import itertools
from collections import Counter
from collections.abc import Container, Iterator
from typing import Final

from msgtx import TopicPartition
from tests.histories.anomalies import Anomaly, Name
from tests.histories.committed import LATEST, check_commits, check_processed
from tests.histories.facts import ABORTED, COMMITTED, UNKNOWN, Facts, Sent, Transaction
from tests.histories.history import History, Result
from tests.histories.polled import check_polls
from tests.histories.relays import RELAY_GROUP, RELAY_TARGET, RELAYED
from tests.histories.settled import Settled
from tests.histories.waited import check_deadlocks, check_starved, check_waits
from tests.histories.workers import COPIED, GROUP, LEDGERS

# Which group copies which topic, each input once, and where to.
COPIES: Final = (*((GROUP, COPIED, ledger) for ledger in LEDGERS), (RELAY_GROUP, (RELAYED,), RELAY_TARGET))


def check(history: History, settled: Settled) -> list[Anomaly]:
    """Return everything that contradicts a promise."""
    facts = Facts(history, settled)
    checks = (check_log, check_order, check_acknowledged, check_transactions, check_outcomes, check_views, check_zombies,
              check_offsets, check_rows, check_image, check_copies, check_settled, check_polls, check_commits,
              check_processed, check_waits, check_deadlocks, check_starved)  # fmt: skip
    return [anomaly for each in checks for anomaly in each(facts)]


# ── the log ──


def check_log(facts: Facts) -> Iterator[Anomaly]:
    """Each record in the log was sent, there, once, and is at the offset that its producer was answered."""
    settled = facts.settled
    for partition, rows in settled.everything.items():
        found = [offset for offset, _ in rows]
        if found != list(range(settled.ends.get(partition, (0, len(rows)))[1])):
            yield Anomaly(Name.HOLE, f"{partition}: the log ends at {settled.ends[partition][1]} and holds {_ranges(found)}")
        there, seen = dict(rows), settled.committed.get(partition, ())
        if any(after <= before for (before, _), (after, _) in itertools.pairwise(seen)):
            yield Anomaly(Name.NON_MONOTONIC_POLL, f"{partition} is read as {_ranges([offset for offset, _ in seen])}")
        for offset, value in seen:
            if there.get(offset) != value:
                other = there.get(offset)
                yield Anomaly(
                    Name.INCONSISTENT_OFFSETS, f"{partition}/{offset} is committed as {value} and stored as {other}"
                )
            if (sent := facts.sent.get(value)) is not None and facts.aborted(sent):
                yield Anomaly(Name.ABORTED_READ, f"{value} at {partition}/{offset}: {_of(facts, sent)}, in the final log")
        for offset, value in rows:
            yield from _check_row(facts, partition, offset, value)


def _check_row(facts: Facts, partition: TopicPartition, offset: int, value: str) -> Iterator[Anomaly]:
    sent = facts.sent.get(value)
    if sent is None or sent.partition != partition or sent.refused:
        how = "nobody sent it" if sent is None else "it was refused" if sent.refused else f"it was sent to {sent.partition}"
        yield Anomaly(Name.PHANTOM, f"{value} at {partition}/{offset}: {how}")
        return
    places = facts.places(value)
    if len(places) > 1:
        if sent.once and places[0] == (partition, offset):
            yield Anomaly(Name.DUPLICATE, f"{value} of {sent.producer} is at {_places(places)}")
    elif sent.offset not in {-1, offset}:
        yield Anomaly(
            Name.INCONSISTENT_OFFSETS, f"{value} was acknowledged at {partition}/{sent.offset}, and is at {offset}"
        )


def check_order(facts: Facts) -> Iterator[Anomaly]:
    """I3: a producer's records in a partition are in the order in which it sent them."""
    for partition, rows in facts.settled.everything.items():
        last: dict[str, Sent] = {}
        for offset, value in rows:
            sent = facts.sent.get(value)
            if sent is None or not sent.once or len(facts.places(value)) > 1:
                continue
            before = last.get(sent.producer)
            if before is not None and before.order > sent.order:
                yield Anomaly(
                    Name.NON_MONOTONIC_SEND, f"{value} at {partition}/{offset} stands behind {before.value}, sent later"
                )
            last[sent.producer] = sent


def check_acknowledged(facts: Facts) -> Iterator[Anomaly]:
    """I9: a record acknowledged outside a transaction is there, unless a crash was allowed to lose it."""
    visible = {value for rows in facts.settled.committed.values() for _, value in rows}
    for sent in facts.sent.values():
        operation = sent.operation
        if sent.transaction is not None or not operation.ok or operation.completed is None or sent.value in visible:
            continue
        if operation.arguments["acks"] != "0" and not facts.may_be_lost(sent, stored_by=operation.completed):
            yield Anomaly(Name.LOST_WRITE, f"{sent.value} was acknowledged at {sent.partition}/{sent.offset} with "
                                           f"acks={operation.arguments['acks']}, and is not there")  # fmt: skip


# ── transactions ──


def check_transactions(facts: Facts) -> Iterator[Anomaly]:
    """All records of a committed transaction are there."""
    visible = {value for rows in facts.settled.committed.values() for _, value in rows}
    for transaction in facts.transactions.values():
        if not transaction.committed:
            continue
        expected = [sent for sent in transaction.sent if not sent.refused]
        missing = [f"{sent.value} ({sent.partition})" for sent in expected if sent.value not in visible]
        if missing:
            name = Name.LOST_WRITE if len(missing) == len(expected) else Name.TORN_TRANSACTION
            shown = ", ".join(missing[:5])
            yield Anomaly(name, f"{transaction.name} is committed; {len(missing)} of {len(expected)} are not there: {shown}")


def check_outcomes(facts: Facts) -> Iterator[Anomaly]:
    """I4: all clients got the same answer."""
    for transaction in facts.transactions.values():
        found = f"{transaction.name} is {transaction.outcome}"
        wrote = bool(transaction.sent or transaction.offsets)
        for operation in transaction.commits:
            if operation.ok and not transaction.committed and wrote:
                yield Anomaly(Name.TWO_OUTCOMES, f"{found}, and {operation.process} was told that it is committed")
            if operation.result is Result.FAIL and transaction.committed:
                error = operation.answer.get("error")
                yield Anomaly(Name.TWO_OUTCOMES, f"{found}, and the commit of {operation.process} failed with {error}")
        if transaction.committed and any(operation.ok for operation in transaction.aborts):
            yield Anomaly(Name.TWO_OUTCOMES, f"{found}, and its producer was told that it is aborted")
        if transaction.committed and not transaction.commits:
            yield Anomaly(Name.TWO_OUTCOMES, f"{found}, and nobody asked for that")
    for operation in facts.history.kind("outcome"):
        name, told = operation.arguments["transaction"], operation.answer.get("outcome")
        if operation.ok and told in {COMMITTED, ABORTED} and told != facts.transaction(name).outcome:
            yield Anomaly(
                Name.TWO_OUTCOMES, f"{name} is {facts.transaction(name).outcome}, and {operation.process} was told {told}"
            )


def check_views(facts: Facts) -> Iterator[Anomaly]:
    """I6: one statement over `committed_records_now` sees all of a transaction or none."""
    for operation in facts.history.kind("view"):
        for name, seen in operation.answer.get("transactions", {}).items():
            transaction = facts.transaction(name)
            expected = Counter(str(sent.partition) for sent in transaction.sent if not sent.refused)
            if not transaction.committed:
                yield Anomaly(Name.ABORTED_READ, f"{name} is {transaction.outcome}; {operation.process} saw {seen}")
            elif seen != expected:
                yield Anomaly(Name.TORN_TRANSACTION, f"{operation.process} saw {seen} of {name}; it has {dict(expected)}")


def check_zombies(facts: Facts) -> Iterator[Anomaly]:
    """I7: after init has returned, no call that an older epoch begins takes effect."""
    for transaction in facts.transactions.values():
        if (over := facts.taken_over(transaction)) is not None:
            yield from _check_zombie(facts, transaction, over)


def _check_zombie(facts: Facts, transaction: Transaction, over: int) -> Iterator[Anomaly]:
    for sent in transaction.sent:
        if sent.operation.invoked > over and (places := facts.places(sent.value)):
            yield Anomaly(Name.ZOMBIE_WRITE, f"{sent.value} of {transaction.name} was sent after a newer epoch had begun, "
                                             f"and is at {_places(places)}")  # fmt: skip
            return
    if transaction.committed and transaction.commits and transaction.commits[0].invoked > over:
        yield Anomaly(Name.ZOMBIE_WRITE, f"{transaction.name} is committed; its commit began after a newer epoch had")


# ── consume–transform–produce ──


def check_offsets(facts: Facts) -> Iterator[Anomaly]:
    """I10, I11: a group is at the offset that the last committed transaction of the partition's owners wrote.

    A partition moves between transactional ids, whose numbers cannot be compared. But every owner begins where the
    group is and never goes back from there, and one at a time may commit: in whatever order they owned it, the offsets
    of committed transactions only rise, in real time, too, and the group ends at the highest. A lower one is a zombie's.
    """
    committed: dict[tuple[str, TopicPartition], list[tuple[int, Transaction]]] = {}
    for transaction in facts.transactions.values():
        for key, at in transaction.offsets.items() if transaction.committed else ():
            committed.setdefault(key, []).append((at, transaction))
    others = {each.arguments.get("group") for each in facts.history.kind("commit offsets", "close")}
    others |= {each.arguments.get("group") for each in facts.history.kind("seek") if each.arguments.get("reset") == LATEST}
    for key in committed.keys() | facts.settled.offsets.keys():
        group, partition = key
        if group in others and key not in committed:
            continue  # committed without a transaction; or only the end of the log, where it began
        offsets = [(at, transaction.name) for at, transaction in committed.get(key, ())]
        highest, name = max(offsets) if offsets else (None, "nobody")
        found = facts.settled.offsets.get(key)
        if found != highest:
            yield Anomaly(Name.OFFSET_OUTPUT_SPLIT, f"{group} is at {found} of {partition}; {name} committed {highest}")
        yield from _check_rising(key, committed.get(key, []))


def _check_rising(key: tuple[str, TopicPartition], committed: list[tuple[int, Transaction]]) -> Iterator[Anomaly]:
    """A commit that began after another one was answered has no lower offset."""
    begun = sorted(committed, key=lambda each: each[1].commits[-1].invoked)
    answered = sorted(
        (
            (done, at, transaction)
            for at, transaction in committed
            if (done := transaction.commits[-1].completed) is not None
        ),
        key=lambda each: each[0],
    )
    furthest: tuple[int, str] = (0, "")
    following = 0
    for at, transaction in begun:
        while following < len(answered) and answered[following][0] < transaction.commits[-1].invoked:
            furthest = max(furthest, (answered[following][1], answered[following][2].name))
            following += 1
        if at < furthest[0]:
            group, partition = key
            yield Anomaly(Name.OFFSET_OUTPUT_SPLIT, f"{transaction.name} committed {at} of {partition} for {group} after "
                                                    f"{furthest[1]} had committed {furthest[0]}")  # fmt: skip


def check_rows(facts: Facts) -> Iterator[Anomaly]:
    """I6: the row that a user's session writes is there, once, if its transaction is committed."""
    found = Counter(facts.settled.rows)
    for transaction in facts.transactions.values():
        if (row := transaction.row) is not None and (count := found.pop(row, 0)) != transaction.committed:
            yield Anomaly(Name.ROW_SPLIT, f"{transaction.name} is {transaction.outcome}, and {row} is there {count} times")
    for row in found:
        yield Anomaly(Name.ROW_SPLIT, f"{row} is there, and no transaction was to commit it")


def check_image(facts: Facts) -> Iterator[Anomaly]:
    """Each committed input has one output in each ledger, and there are no others. With acks=1 an output may exist twice."""
    for group, sources, ledger in COPIES:
        copied = any(">" in value for tp, rows in facts.settled.committed.items() if tp.topic == ledger for _, value in rows)
        if copied or any(name == group for name, _ in facts.settled.offsets):  # else no job copies in this run
            yield from check_outputs(facts.settled, [tp for tp in facts.settled.committed if tp.topic in sources], ledger)


def check_outputs(
    settled: Settled, sources: Container[TopicPartition], target: str, *, outputs: int = 1
) -> Iterator[Anomaly]:
    """Each committed input has so many outputs, `input>…`, and there are no others."""
    inputs = Counter(value for tp, rows in settled.committed.items() if tp in sources for _, value in rows)
    counted = Counter(
        value.split(">")[0]
        for tp, rows in settled.committed.items() if tp.topic == target
        for _, value in rows if ">" in value
    )  # fmt: skip
    for value in inputs.keys() | counted.keys():
        if (count := counted[value]) != inputs[value] * outputs:
            yield Anomaly(Name.IMAGE, f"{value} is there {inputs[value]} times, and has {count} outputs in {target}")


def check_copies(facts: Facts) -> Iterator[Anomaly]:
    """I3 and I10 together: outputs are in the order of their inputs, whichever worker made them.

    From one partition of the input to one partition of the output: so records of a key keep their order. Of outputs that
    exist twice the first counts.
    """
    for group, sources, ledger in COPIES:
        places = {
            value: (partition, offset)
            for partition, rows in facts.settled.committed.items() if partition.topic in sources
            for offset, value in rows if len(facts.places(value)) == 1
        }  # fmt: skip
        for partition, rows in facts.settled.committed.items():
            latest: dict[TopicPartition, tuple[int, str]] = {}
            seen: set[str] = set()
            for offset, output in rows if partition.topic == ledger else ():
                value, is_output, _ = output.partition(">")
                if not is_output or value not in places or value in seen:
                    continue
                seen.add(value)
                source, at = places[value]
                behind, before = latest.get(source, (-1, ""))
                if at < behind:
                    yield Anomaly(
                        Name.DISORDERED, f"{output} of {group} is at {partition}/{offset}, behind {before}: their inputs"
                        f" are at {at} and {behind} of {source}"
                    )  # fmt: skip
                latest[source] = max((at, output), (behind, before))


def check_settled(facts: Facts) -> Iterator[Anomaly]:
    """I8, I12: when all workers have ended, nothing is open, and the stored data is consistent."""
    for partition, (stable, end) in facts.settled.ends.items():
        if stable != end:
            yield Anomaly(Name.STUCK, f"{partition}: last stable offset {stable}, log end {end}")
    for listed in facts.settled.open_transactions:
        yield Anomaly(Name.STUCK, listed)
    for group, count in facts.settled.members.items():
        if count:
            yield Anomaly(Name.STUCK, f"{group} has {count} members, and all have ended")
    for violation in facts.settled.violations:
        yield Anomaly(Name.VIOLATION, violation)


# ── words ──


def _of(facts: Facts, sent: Sent) -> str:
    if sent.transaction is None:
        return f"of {sent.producer}"
    outcome = facts.transaction(sent.transaction).outcome
    return f"{sent.transaction} is {'not there' if outcome == UNKNOWN else outcome}"


def _places(places: list[tuple[TopicPartition, int]]) -> str:
    return ", ".join(f"{partition}/{offset}" for partition, offset in places)


def _ranges(numbers: list[int]) -> str:
    """Return numbers in short form: `0-24, 30`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts[:20])
