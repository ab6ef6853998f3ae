"""A transaction is named by producer id, epoch and number: one that shares two of the three changes no answer (I4, P10).

Each act happens to a transaction alone, and beside others that share two parts of its name, wrote to the same partitions,
committed offsets of the same group, and left their seals. All answers and what readers see afterwards are equal.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import pytest

from msgtx.database.pool import Engine
from msgtx.store.fetch.cuts import consistent_cut, spans_of_transactions
from msgtx.store.fetch.fetch import LATEST, list_offsets
from msgtx.store.fetch.holders import expire_holders
from msgtx.store.fetch.records import count_records, first_records
from msgtx.store.operator import installation
from msgtx.store.sweeps import sweeps
from msgtx.store.transactions.decide import Ending
from msgtx.store.transactions.producers import describe_producers, fence_producer
from msgtx.store.transactions.seal import Kind, Sealed, complete_prepared, decide_sealed, seal, undecided_prepared
from msgtx.store.transactions.transactions import describe_transaction, end_transaction, mark, transaction_outcome
from msgtx.store.transactions.undecided import undecided_seals, undecided_transactions, unfinished_decisions
from msgtx.types import Outcome, TransactionId
from tests.databases import Clock, Connection
from tests.store.steps import (
    COMMITTED,
    Writer,
    append_one,
    committed_at,
    ends,
    expire_transaction,
    expire_transactions,
    new_topic,
    offsets_of,
    to_its_end,
    unique,
    values,
)

pytestmark = pytest.mark.slow

OWN: Final = [b"own 1", b"own 2"]


class Scene:
    """A transaction, and whether it has namesakes: how they ended, or None."""

    def __init__(self, connection: Connection, namesakes: Ending | None) -> None:
        self.connection = connection
        self.one, self.other = new_topic(connection, 2)
        self.group = unique("group")
        self.writer, stranger = Writer(connection), Writer(connection)
        self.ended = namesakes
        self.namesakes: list[TransactionId] = []
        if namesakes is not None:
            for writer in (self.writer, stranger):
                self._decided(writer, namesakes)  # number 0 of epoch 0
                self._decided(writer, namesakes)  # the older epoch, the same number
                writer.init()
                self._decided(writer, namesakes)  # the number before
            self._decided(stranger, namesakes)  # the same epoch and number

    def begin(self, state: str) -> None:
        """Bring the transaction into a state."""
        connection = self.connection
        self.first = {partition: ends(connection, partition)[2] for partition in (self.one, self.other)}
        self.sent = {partition: self.writer.sequences.get(partition, 0) for partition in self.first}
        self.began = connection.execute("select msgtx.clock()").fetchone()[0]  # type: ignore[index]
        self.sealed: Sealed | None = None
        self.name = self.writer.name
        if state != "nothing":
            self.writer.send(self.one, OWN[0])
            self.writer.send(self.other, b"elsewhere")
            self.writer.send(self.one, OWN[1])
        if state in ("session", "external"):
            self.sealed = self._sealed(self.writer, "session" if state == "session" else "external", 9)
        elif state in ("COMMIT", "ABORT"):
            self.writer.decide(state, offsets=offsets_of((self.group, self.one, 9)))

    def _sealed(self, writer: Writer, kind: Kind, at: int) -> Sealed:
        answer = seal(self.connection, writer.name, kind, tails=writer.tails, offsets=offsets_of((self.group, self.one, at)))
        assert answer.sealed is not None, answer.error
        return answer.sealed

    def _decided(self, writer: Writer, outcome: Ending) -> None:
        """A transaction that was prepared and then decided: its seal stays until a sweep."""
        for partition in (self.one, self.other):
            writer.send(partition, b"a namesake's")
        self._sealed(writer, "external", 4)
        complete_prepared(self.connection, writer.name, outcome)
        self.namesakes.append(writer.name)
        writer.next()

    def counted(self, sequences: dict[int, int | None]) -> list[int | None]:
        """Return sequences, counted from the transaction's first one."""
        return [last if last is None else last - self.sent[partition] for partition, last in sequences.items()]

    def seen(self) -> dict[str, Any]:
        """What readers and askers see of the transaction, offsets counted from its beginning."""
        offset, pending = committed_at(self.connection, self.group, self.one)
        _, stable, end = ends(self.connection, self.one)
        return {
            "outcome": transaction_outcome(self.connection, self.name),
            "values": [value for value in values(self.connection, self.one) if value in OWN],
            "ends": (stable - self.first[self.one], end - self.first[self.one]),
            "offset": (offset if offset == 9 else None, pending),
        }

    def stay(self) -> bool:
        """Return whether every namesake is as it was."""
        as_it_was = Outcome.COMMITTED if self.ended == "COMMIT" else Outcome.ABORTED
        outcomes = {transaction_outcome(self.connection, name).outcome for name in self.namesakes}
        readable = values(self.connection, self.one).count(b"a namesake's")
        return outcomes <= {as_it_was} and readable == (len(self.namesakes) if self.ended == "COMMIT" else 0)


def decided(scene: Scene, outcome: Ending) -> object:
    answer = scene.writer.decide(outcome, name=scene.name, offsets=offsets_of((scene.group, scene.one, 9)))
    return type(answer.error), answer.outcome, scene.counted(answer.last_sequences)


def sealing(scene: Scene, kind: Kind) -> object:
    tails, offsets = scene.writer.tails, offsets_of((scene.group, scene.one, 9))
    answer = seal(scene.connection, scene.name, kind, tails=tails, offsets=offsets)
    if answer.sealed is None:
        return type(answer.error), scene.counted(answer.last_sequences)
    spans = zip(answer.sealed.partitions, answer.sealed.first_offsets, answer.sealed.last_offsets, strict=True)
    return answer.sealed.deadline is None, [(first - scene.first[p], last - scene.first[p]) for p, first, last in spans]


def tried(act: Callable[..., object], connection: Connection, *arguments: Any) -> object:
    """Return what a call answers, or the class of the error that it raises."""
    try:
        with connection.transaction():
            return act(connection, *arguments)
    except Exception as error:  # noqa: BLE001 - any refusal is an answer, and compared
        return type(error)


def appended(scene: Scene) -> object:
    answer = append_one(scene.connection, scene.writer.row(scene.one, OWN[0], number=scene.name.transaction_number))
    return type(answer.error), None if answer.error else answer.base_offset - scene.first[scene.one]


def appended_outside(scene: Scene) -> object:
    """Refused while the transaction is undecided."""
    answer = append_one(scene.connection, scene.writer.row(scene.one, OWN[0], number=None))
    return type(answer.error), None if answer.error else answer.base_offset - scene.first[scene.one]


def fused(scene: Scene) -> object:
    row = scene.writer.row(scene.one, OWN[0], number=scene.name.transaction_number)
    return [type(answer.error) for answer in scene.writer.whole(row)]


def session_commits(scene: Scene) -> object:
    return scene.sealed and tried(decide_sealed, scene.connection, scene.sealed)


def held(scene: Scene) -> object:
    found = expire_holders(scene.connection, [scene.one], scene.group)
    return [(holder.transaction_id == scene.name, holder.kind, holder.expired) for holder in found]


def described(scene: Scene) -> object:
    found = describe_transaction(scene.connection, scene.writer.transactional_id)
    if found is None or found.transaction_id != scene.name:
        return None
    return found.state, found.decided_by, len(found.partitions)


def since(scene: Scene, *times: datetime | None) -> list[bool | None]:
    """Return which of these times are of the transaction itself: what its namesakes did was before."""
    return [None if time is None else time >= scene.began for time in times]


def undecided(scene: Scene) -> object:
    connection, name = scene.connection, scene.name
    open_ones, _ = undecided_transactions(connection, [scene.one, scene.other], each_partition=9, most=9)
    seals, _ = undecided_seals(connection, most=1_000)
    unfinished, _ = unfinished_decisions(connection, older_than_ms=0, most=1_000)
    begun = {state.producer_id: state.transaction_start_offset for state in describe_producers(connection, scene.one)}
    return (
        [
            (found.transaction_id == name, found.seal_kind, *since(scene, found.opened_at, found.sealed_at))
            for found in open_ones
        ],
        [(found.kind, *since(scene, found.opened_at, found.sealed_at)) for found in seals if found.transaction_id == name],
        [(found.outcome, found.missing) for found in unfinished if found.transaction_id == name],
        undecided_prepared(connection, name.producer_id) == name,
        begun.get(name.producer_id) == scene.first[scene.one],
    )


def looked_up(scene: Scene) -> object:
    connection, latest = scene.connection, dict.fromkeys(scene.first, LATEST)
    cut = consistent_cut(scene.connection, [scene.one, scene.other])
    first = first_records(scene.connection, scene.first)
    starts, stops = scene.first, {partition: at + 1 for partition, at in scene.first.items()}
    spans = spans_of_transactions(scene.connection, starts, stops)
    return (
        [(at.end - scene.first[p], at.held_by == scene.name) for p, at in cut.items()],
        sorted(first) == sorted(scene.first) or sorted(first),
        list(count_records(scene.connection, scene.first, COMMITTED).values()),
        {scene.first[p] - at.last_stable_offset for p, at in list_offsets(connection, latest, COMMITTED).items()},
        [[(low - scene.first[p], high - scene.first[p]) for p, (low, high) in sorted(span.items())] for span in spans],
    )  # fmt: skip


def swept(scene: Scene, step: sweeps.Step) -> None:
    list(to_its_end(scene.connection, step))


STATES: Final = ("nothing", "open", "session", "external", "COMMIT", "ABORT")
LATER: Final = ("expire", "expire all", "holders later", "undecided later")
ACTS: Final[dict[str, Callable[[Scene], object]]] = {
    "append": appended,
    "append outside": appended_outside,
    "append and decide": fused,
    "commit": lambda scene: decided(scene, "COMMIT"),
    "abort": lambda scene: decided(scene, "ABORT"),
    "seal for a session": lambda scene: sealing(scene, "session"),
    "seal for an outside party": lambda scene: sealing(scene, "external"),
    "the session commits": session_commits,
    "the outside party commits": lambda scene: tried(complete_prepared, scene.connection, scene.name, "COMMIT"),
    "the outside party aborts": lambda scene: tried(complete_prepared, scene.connection, scene.name, "ABORT"),
    "an administrator": lambda scene: end_transaction(scene.connection, scene.name, "admin"),
    "resolve": lambda scene: end_transaction(scene.connection, scene.name, "resolve"),
    "expire": lambda scene: expire_transaction(scene.connection, scene.name),
    "expire all": lambda scene: expire_transactions(scene.connection) and None,
    "holders": held,
    "holders later": held,
    "init": lambda scene: scene.writer.init(),
    "fence": lambda scene: fence_producer(scene.connection, scene.writer.transactional_id) and None,
    "fence everybody": lambda scene: installation.fence_everybody(scene.connection, plain=False) and None,
    "mark": lambda scene: mark(scene.connection, everything=True) and None,
    "remove seals": lambda scene: swept(scene, sweeps.remove_decided_seals),
    "describe": described,
    "undecided": undecided,
    "undecided later": undecided,
    "look up": looked_up,
}


@pytest.fixture(scope="module")
def scenes(engine: Engine) -> Iterator[dict[str, list[Scene]]]:
    """Each state of a transaction: alone, and beside namesakes."""
    connection = engine.dedicated()
    made = {state: [Scene(connection, ended) for ended in ("COMMIT", "ABORT")] for state in STATES}
    mark(connection, everything=True)  # these namesakes have their markers, the others have not
    for beside in made.values():
        beside[:0] = [Scene(connection, ended) for ended in (None, "COMMIT", "ABORT")]
    for state, beside in made.items():
        for scene in beside:
            scene.begin(state)
    yield made
    connection.close()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("state", STATES)
def test_a_name_is_taken_for_no_other(scenes: dict[str, list[Scene]], clock: Clock, state: str, act: str) -> None:
    found = []
    if act in LATER:
        clock("1 hour")
    for scene in scenes[state]:
        name, producer = scene.name, scene.writer.id
        with scene.connection.transaction(force_rollback=True):
            answer = ACTS[act](scene)
            found.append((answer, scene.seen()))
            assert scene.stay()
        scene.name, scene.writer.id = name, producer
    alone, *beside = found
    assert [each for each in beside if each != alone] == []
