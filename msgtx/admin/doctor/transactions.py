"""Transactions that hold partitions back, prepared ones, and those with an incomplete second phase."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Protocol

from msgtx.admin.doctor.findings import Limits, Look, data_of, more_of, since, span
from msgtx.admin.hanging import how_to_end, is_of, why
from msgtx.store.operator.server import Session, describe_sessions
from msgtx.store.transactions.undecided import (
    Undecided,
    UndecidedSeal,
    Unfinished,
    undecided_seals,
    undecided_transactions,
    unfinished_decisions,
)
from msgtx.types import Finding, Level
from msgtx.units import counted

MORE = "they are listed when these are gone, or with a larger number"


def held_partitions(look: Look) -> Iterator[Finding]:
    """Find partitions with a last stable offset below their log end, and the transactions that hold them back."""
    found, total = undecided_transactions(look.connection, each_partition=1, most=look.most)
    pids = {one.database_backend for one in found if one.database_backend is not None}
    sessions = describe_sessions(look.connection, sorted(pids))
    for one in found:
        yield _held(one, sessions.get(one.database_backend or 0), look.limits)
    yield from more_of(total, found, "partitions", "partitions are held back", MORE)


def _held(one: Undecided, session: Session | None, limits: Limits) -> Finding:
    waiting = (one.log_end_offset or one.first_offset) - one.first_offset
    level, verdict, advice = _judged(one, limits)
    owner = "" if one.transactional_id is None else f" of {one.transactional_id!r}"
    state = "Ongoing" if one.seal_kind is None else "Prepared"
    age = since(one.opened_at, one.checked_at)
    for_long = "" if age is None else f" for {span(age)}"
    parts = [
        f"readers stop at offset {one.first_offset}, {waiting} records wait: transaction {one.transaction_id}{owner}"
        f" is {state}{for_long}",
        client_of(one, session),
        verdict,
    ]
    more = {"state": state, "records_waiting": waiting, "age_seconds": age, "session": session and data_of(session)}
    return Finding(level, str(one.partition), "; ".join(filter(None, parts)), advice, data_of(one, **more))


def _judged(one: Undecided, limits: Limits) -> tuple[Level, str, str]:
    """Return the level, the expected end of the transaction, and the advice."""
    end = how_to_end(one.transaction_id, seal_kind=one.seal_kind, transactional_id=one.transactional_id)
    if one.opened_at is None or one.current_epoch is None:
        return Level.PROBLEM, why(one), end
    if one.seal_kind == "external":
        late = (since(one.sealed_at, one.checked_at) or 0.0) > limits.snapshot_seconds
        return Level.WARNING if late else Level.INFORMATION, "it waits for an outside decision", end
    deadline = one.opened_at + timedelta(milliseconds=one.timeout_ms or 0)
    left = (deadline - one.checked_at).total_seconds()
    if left < -limits.grace_seconds:
        verdict = f"it is overdue by {span(-left)} and nobody has aborted it"
        return Level.PROBLEM, verdict, f"`msgtx sweep`, regularly; or {end}"
    return Level.INFORMATION, f"if it does not end it is aborted in {span(left)}", f"wait, or {end}"


class Opened(Protocol):
    """A transaction, and the process that opened it."""

    @property
    def opened_at(self) -> datetime | None: ...  # noqa: D102 - as in `Undecided`
    @property
    def client_host(self) -> str | None: ...  # noqa: D102
    @property
    def client_process(self) -> int | None: ...  # noqa: D102
    @property
    def database_backend(self) -> int | None: ...  # noqa: D102
    @property
    def checked_at(self) -> datetime: ...  # noqa: D102


def client_of(one: Opened, session: Session | None) -> str:
    """Return the opener of a transaction: its process, and the state of its database session."""
    process = "" if one.client_host is None else f"process {one.client_process} on {one.client_host}, "
    if one.database_backend is None:
        return ""
    name = f"{process}database session {one.database_backend}"
    if session is None or not is_of(session, one.opened_at):
        return f"{name}, which has ended"
    if not session.visible:
        return f"{name} (its state is hidden from this role)"
    doing = [f"{session.state or 'without a state'}"]
    if (idle := since(session.state_since, one.checked_at)) is not None:
        doing.append(f"for {span(idle)}")
    if session.wait_event:
        doing.append(f"in {session.wait_event}")
    if session.state == "active" and (running := since(session.query_start, one.checked_at)) is not None:
        doing.append(f"with a query of {span(running)}")
    return f"{name} ({session.application_name or session.role}) {' '.join(doing)}"


def prepared_transactions(look: Look) -> Iterator[Finding]:
    """Find sealed transactions that are not decided."""
    found, total = undecided_seals(look.connection, most=look.most)
    for one in found:
        yield _prepared(one, look.limits)
    yield from more_of(total, found, "prepared", "transactions are prepared", MORE)


def _prepared(one: UndecidedSeal, limits: Limits) -> Finding:
    age = (one.checked_at - one.sealed_at).total_seconds()
    owner = "" if one.transactional_id is None else f" of {one.transactional_id!r}"
    partner = "a SQL session" if one.kind == "session" else "an outside decision"
    where = f"on {counted(one.partitions, 'partition')}" if one.partitions else "with consumer offsets only"
    advice = how_to_end(one.transaction_id, seal_kind=one.kind, transactional_id=one.transactional_id)
    overdue = one.deadline is not None and (one.checked_at - one.deadline).total_seconds() > limits.grace_seconds
    level = Level.WARNING if age > limits.snapshot_seconds else Level.INFORMATION
    text = f"transaction {one.transaction_id}{owner} is prepared for {partner} for {span(age)}, {where}"
    if overdue and one.kind == "session":
        level, text, advice = Level.PROBLEM, f"{text}, and past its deadline", f"`msgtx sweep`, regularly; or {advice}"
    return Finding(level, f"transaction {one.transaction_id}", text, advice, data_of(one, age_seconds=age))


def unfinished_phase_two(look: Look) -> Iterator[Finding]:
    """Find decided transactions whose markers are missing for longer than markers take."""
    grace_ms = int(look.limits.grace_seconds * 1000)
    found, total = unfinished_decisions(look.connection, older_than_ms=grace_ms, most=look.most)
    if not found:
        return
    oldest = found[0]
    age = (oldest.checked_at - oldest.decided_at).total_seconds()
    yield Finding(
        Level.WARNING,
        "phase two",
        f"{total} decided transactions lack markers, the oldest ({oldest.transaction_id}, {oldest.outcome}) for"
        f" {span(age)}: their data is right, and readers search longer than they need to",
        "`msgtx sweep`, regularly",
        {"count": total, "age_seconds": age, "transactions": [_unfinished(one) for one in found]},
    )


def _unfinished(one: Unfinished) -> dict[str, object]:
    told = data_of(one)
    return told | {"partitions_missing": told.pop("missing")}
