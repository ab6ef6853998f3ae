"""Share groups: the reason why records of a partition wait."""

from collections.abc import Iterator
from datetime import timedelta

from msgtx.admin.doctor.findings import Limits, Look, data_of, member_of, more_of, since, span
from msgtx.admin.doctor.transactions import client_of
from msgtx.admin.hanging import how_to_end
from msgtx.store.operator.server import Session, describe_sessions
from msgtx.store.shares.shares import WaitingShare, waiting_shares
from msgtx.types import Finding, Level

DESCRIBE = "`msgtx shares describe {}`"
LETTERS_ADVICE = "`msgtx shares configure {0} --dead-letter-topic {0}-dead-letters`"
PENDING = ("transaction_id", "transactional_id", "opened_at", "timeout_ms", "database_backend", "seal_kind")
MOST_ADVICE = "wait, or raise max_record_locks: `msgtx shares configure {} --max-record-locks N`"


def waiting(look: Look) -> Iterator[Finding]:
    """Find share partitions on which records wait, with the reason."""
    found, total = waiting_shares(look.connection, most=look.most)
    backends = {one.database_backend for one in found if one.database_backend is not None}
    sessions = describe_sessions(look.connection, sorted(backends))
    for one in found:
        yield _waiting(one, sessions.get(one.database_backend or 0), look.limits)
    yield from more_of(total, found, "share groups", "share partitions have something in flight, or nobody who reads them")


def _waiting(one: WaitingShare, session: Session | None, limits: Limits) -> Finding:
    behind = max(0, one.readable_end - one.next_offset)
    level, advice = Level.INFORMATION, DESCRIBE.format(one.group_name)
    parts = []
    if one.producer_id is not None:
        level, text, advice = _pending(one, session, limits)
        parts.append(f"{one.pending} answered in a transaction that is not decided: {text}")
    if one.locked_until is not None:
        parts.append(f"{one.acquired} acquired, the first by {_holder(one)}")
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
        level, advice = Level.WARNING, LETTERS_ADVICE.format(one.group_name)
    if behind:
        parts.append(f"{behind} behind them were never delivered")
    if behind and one.acquired + one.pending >= one.max_record_locks:
        parts.append(f"no more are delivered: {one.max_record_locks} (max_record_locks) are in flight")
        if level is Level.INFORMATION:
            level, advice = Level.WARNING, MOST_ADVICE.format(one.group_name)
    if one.members == 0 and (one.available or one.waiting or one.rejected or behind):
        parts.append("the group has no members")
        if level is Level.INFORMATION:
            level, advice = Level.WARNING, f"start a member; or `msgtx shares delete {one.group_name}`"
    text = f"{one.partition} from offset {one.start_offset} on: {'; '.join(parts)}"
    data = _data(one) | {"records_behind": behind, "session": session and data_of(session)}
    return Finding(level, f"share group {one.group_name}", text, advice, data)


def _data(one: WaitingShare) -> dict[str, object]:
    told = data_of(one)
    told["group"] = told.pop("group_name")
    holder = {name: told.pop(name) for name in ("member_id", "client_host", "client_process", "locked_until")}
    pending = {name: told.pop(name) for name in PENDING}
    opener = {"client_host": told.pop("opener_host"), "client_process": told.pop("opener_process")}
    pending |= {**opener, "checked_at": told["checked_at"]}
    told["holder"] = None if one.locked_until is None else holder
    told["transaction"] = None if one.producer_id is None else pending
    return told


def _holder(one: WaitingShare) -> str:
    left = (one.locked_until - one.checked_at).total_seconds()
    return f"{member_of(one)}, whose lock ends in {span(left)}"


def _pending(one: WaitingShare, session: Session | None, limits: Limits) -> tuple[Level, str, str]:
    """Return the level, the facts of the transaction, and the advice."""
    end = how_to_end(one.transaction_id, seal_kind=one.seal_kind, transactional_id=one.transactional_id)
    owner = "" if one.transactional_id is None else f" of {one.transactional_id!r}"
    age = since(one.opened_at, one.checked_at)
    state = "Ongoing" if one.seal_kind is None else "Prepared"
    name = f"{one.transaction_id}{owner} is {state}" + ("" if age is None else f" for {span(age)}")
    opened = one._replace(client_host=one.opener_host, client_process=one.opener_process)
    who = f", {text}" if (text := client_of(opened, session)) else ""
    if one.seal_kind == "external":
        late = (age or 0.0) > limits.snapshot_seconds
        return Level.WARNING if late else Level.INFORMATION, f"{name}{who}, and waits for an outside decision", end
    if one.opened_at is None:
        return Level.PROBLEM, f"{name}, and its row is missing", end
    left = (one.opened_at + timedelta(milliseconds=one.timeout_ms or 0) - one.checked_at).total_seconds()
    if left < -limits.grace_seconds:
        return Level.PROBLEM, f"{name}{who}, and overdue by {span(-left)}", f"`msgtx sweep`, regularly; or {end}"
    return Level.INFORMATION, f"{name}{who}, and is aborted in {span(left)} if it does not end", f"wait, or {end}"
