"""How long calls took, against their own timeouts; calls that had to wait for others, and gave up."""

from collections.abc import Iterator
from typing import Final

from tests.histories.anomalies import Anomaly, Name
from tests.histories.facts import Facts
from tests.histories.history import NEMESIS, Operation

# On a busy machine a call may come back this much later; one that hangs takes longer.
GRACE_SECONDS: Final = 5.0
ENOUGH_SECONDS: Final = 0.5  # a call that has less than this may fail on a busy machine
CALM_SECONDS: Final = 10.0  # after the last blow; then no call has a reason to fail
SECOND: Final = 1_000_000_000
DEADLOCK: Final = "deadlock detected"
GIVEN_UP: Final = frozenset({"LockTimeout", "DeliveryTimeout", "DatabaseUnavailable", "OutcomeUnknown"})


def check_waits(facts: Facts) -> Iterator[Anomaly]:
    """A call comes back within its own timeout, whatever happens. Time in which its process was stopped does not count."""
    stopped = _pauses(facts)
    for operation in facts.history.operations:
        within = operation.arguments.get("within")
        if within is None or operation.completed is None:
            continue
        taken = operation.completed - operation.invoked
        stood = sum(
            max(0, min(end, operation.completed) - max(start, operation.invoked))
            for start, end in stopped.get(operation.process, ())
        )
        if taken - stood > (within + GRACE_SECONDS) * SECOND:
            yield Anomaly(
                Name.ENDLESS_WAIT, f"{operation.kind} of {operation.process} was to take {within:g} s, and took"
                                   f" {(taken - stood) / SECOND:.1f} s"
            )  # fmt: skip


def _pauses(facts: Facts) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    since: dict[str, int] = {}
    for operation in facts.history.kind("pause", "resume"):
        whom = operation.arguments["whom"]
        if operation.kind == "pause":
            since[whom] = operation.invoked
        elif whom in since:
            found.setdefault(whom, []).append((since.pop(whom), operation.completed or operation.invoked))
    return found


def check_deadlocks(facts: Facts) -> Iterator[Anomaly]:
    """Locks are taken in one order: PostgreSQL never has to end a deadlock."""
    for operation in facts.history.operations:
        if DEADLOCK in str(operation.answer.get("detail", "")):
            yield Anomaly(Name.DEADLOCK, f"{operation.kind} of {operation.process}: {operation.answer['detail'][:200]}")


def check_starved(facts: Facts) -> Iterator[Anomaly]:
    """Once the last blow of a nemesis is long over no call fails, whatever others do."""
    blows = [operation for operation in facts.history.operations if operation.process == NEMESIS]
    if not blows:
        return
    calm = max(blow.completed or blow.invoked for blow in blows) + CALM_SECONDS * SECOND
    for operation in facts.history.operations:
        if operation.invoked > calm and _gave_up(operation):
            told = f"{operation.answer.get('error')}: {operation.answer.get('detail', '')}"
            yield Anomaly(Name.STARVED, f"{operation.kind} of {operation.process} failed in calm: {told}")


def _gave_up(operation: Operation) -> bool:
    within = operation.arguments.get("within")
    if within is not None and within < ENOUGH_SECONDS:
        return False
    return operation.completed is not None and operation.answer.get("error") in GIVEN_UP
