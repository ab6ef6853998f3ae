"""Share groups: the reason why records of a partition wait."""

from collections.abc import Iterator
from datetime import timedelta

from msgtx.admin.doctor.findings import Limits, Look, data_of, since, span
from msgtx.admin.doctor.transactions import client_of
from msgtx.admin.hanging import how_to_end
from msgtx.store.operator.server import Session, describe_sessions
from msgtx.store.shares.shares import Pending, RecordHolder, WaitingShare, waiting_shares
from msgtx.types import Finding, Level

DESCRIBE = "`msgtx shares describe {}`"
LETTERS_ADVICE = "`msgtx shares configure {0} --dead-letter-topic {0}-dead-letters`"
MOST_ADVICE = "wait, or raise max_record_locks: `msgtx shares configure {} --max-record-locks N`"


def waiting(look: Look) -> Iterator[Finding]:
    """Find share partitions on which records wait, with the reason."""
    found, total = waiting_shares(look.connection, most=look.most)
    backends = {one.transaction.database_backend for one in found if one.transaction is not None}
    sessions = describe_sessions(look.connection, sorted(pid for pid in backends if pid is not None))
    for one in found:
        pid = None if one.transaction is None else one.transaction.database_backend
        yield _waiting(one, sessions.get(pid or 0), look.limits)
    if total > len(found):
        more = total - len(found)
        text = f"{more} more share partitions have something in flight, or nobody who reads them"
        yield Finding(Level.INFORMATION, "share groups", text, "", {"more": more})


def _waiting(one: WaitingShare, session: Session | None, limits: Limits) -> Finding:
    behind = max(0, one.readable_end - one.next_offset)
    level, advice = Level.INFORMATION, DESCRIBE.format(one.group)
    parts = []
    if one.transaction is not None:
        level, text, advice = _pending(one.transaction, session, limits)
        parts.append(f"{one.pending} answered in a transaction that is not decided: {text}")
    if one.holder is not None:
        parts.append(f"{one.acquired} acquired, the first by {_holder(one, one.holder)}")
    if one.available:
        parts.append(f"{one.available} to be delivered again ({one.reason}, the first one delivered {one.deliveries} times)")
    if one.delayed:
        left = (one.due_at - one.checked_at).total_seconds() if one.due_at is not None else 0.0
        parts.append(f"{one.delayed} delayed, the first one for another {span(left)}")
    if one.waiting:
        parts.append(f"{one.waiting} waiting for an earlier one with their key (ordering=key)")
    if one.rejected:
        parts.append(f"{one.rejected} rejected, which the next poll of a member writes as dead letters, or the next sweep")
    if one.exhausted:
        parts.append(
            f"{one.exhausted} delivered as often as they may be, which the next poll or sweep writes as dead letters"
        )
    if (one.rejected or one.exhausted) and not one.writes_letters:
        parts.append("it may not write dead letters: no member has the right to produce to their topic")
        level, advice = Level.WARNING, LETTERS_ADVICE.format(one.group)
    if behind:
        parts.append(f"{behind} behind them were never delivered")
    if behind and one.acquired + one.pending >= one.max_record_locks:
        parts.append(f"no more are delivered: {one.max_record_locks} (max_record_locks) are in flight")
        if level is Level.INFORMATION:
            level, advice = Level.WARNING, MOST_ADVICE.format(one.group)
    if one.members == 0 and (one.available or one.waiting or one.rejected or behind):
        parts.append("the group has no members")
        if level is Level.INFORMATION:
            level, advice = Level.WARNING, f"start a member; or `msgtx shares delete {one.group}`"
    text = f"{one.partition} from offset {one.start_offset} on: {'; '.join(parts)}"
    data = data_of(
        one,
        records_behind=behind,
        holder=one.holder and data_of(one.holder),
        transaction=one.transaction and data_of(one.transaction),
        session=session and data_of(session),
    )
    return Finding(level, f"share group {one.group}", text, advice, data)


def _holder(one: WaitingShare, holder: RecordHolder) -> str:
    host = "" if holder.client_host is None else f" (process {holder.client_process} on {holder.client_host})"
    left = (holder.locked_until - one.checked_at).total_seconds()
    return f"member {holder.member_id}{host}, whose lock ends in {span(left)}"


def _pending(one: Pending, session: Session | None, limits: Limits) -> tuple[Level, str, str]:
    """Return the level, the facts of the transaction, and the advice."""
    end = how_to_end(one.transaction_id, seal_kind=one.seal_kind, transactional_id=one.transactional_id)
    owner = "" if one.transactional_id is None else f" of {one.transactional_id!r}"
    age = since(one.opened_at, one.checked_at)
    state = "Ongoing" if one.seal_kind is None else "Prepared"
    name = f"{one.transaction_id}{owner} is {state}" + ("" if age is None else f" for {span(age)}")
    who = f", {text}" if (text := client_of(one, session)) else ""
    if one.seal_kind == "external":
        late = (age or 0.0) > limits.snapshot_seconds
        return Level.WARNING if late else Level.INFORMATION, f"{name}{who}, and waits for an outside decision", end
    if one.opened_at is None:
        return Level.PROBLEM, f"{name}, and its row is missing", end
    left = (one.opened_at + timedelta(milliseconds=one.timeout_ms or 0) - one.checked_at).total_seconds()
    if left < -limits.grace_seconds:
        return Level.PROBLEM, f"{name}{who}, and overdue by {span(-left)}", f"`msgtx sweep`, regularly; or {end}"
    return Level.INFORMATION, f"{name}{who}, and is aborted in {span(left)} if it does not end", f"wait, or {end}"
