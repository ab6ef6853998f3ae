"""Groups do not see each other: what happens in one is the same beside another one, which stays as it is (I11).

The other one has members of the same names and instance ids, owns and has read the same partitions, and its offsets wait for
the same kind of transaction. All answers, and how the group stands afterwards, are equal to those of a group that is alone.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from msgtx.database.pool import Engine
from msgtx.database.throwaway import set_clock
from msgtx.store.groups.groups import delete_group, delete_offsets, list_groups, neglected_groups, reset_offsets
from msgtx.store.groups.members import release_partitions
from msgtx.store.sweeps import sweeps
from msgtx.store.transactions.seal import seal
from tests.store.roster import Roster
from tests.store.steps import Writer, committed_at, offsets_of, to_its_end, unique

pytestmark = pytest.mark.slow


class Scene:
    """A group in a state, and another one beside it, or None."""

    def __init__(self, group: Roster, other: Roster | None) -> None:
        self.group, self.other = group, other
        self.connection = group.connection
        self.first, self.second = group.partitions
        self.instance = unique("instance")
        if other is not None:
            other.partitions = group.partitions

    def settle(self, group: Roster, state: str) -> None:
        """Bring a group into a state."""
        if state == "offsets alone":
            group.commit(None, self.first, 5)
            return
        group.join("a", self.instance if state.startswith("static") else None)
        if group is self.other and state == "static":
            group.leave("a")
            group.join("x", self.instance)
            group.numbers["a"] = group.join("a").member_number
        if state == "two":
            group.join("b")
        group.assign({self.first: "a", self.second: "b" if state == "two" else "a"})
        if state == "moving":
            group.join("b")
            group.assign({self.first: "a", self.second: "b"})
        group.commit("a", self.first, 5)
        if state.endswith("left"):
            group.leave("a")
        if state == "waiting":
            self.sealed(group, 6)

    def sealed(self, group: Roster, at: int) -> Writer:
        """A transaction that is prepared with an offset of the group."""
        writer = Writer(self.connection)
        answer = seal(
            self.connection, writer.name, "external", tails={}, offsets=offsets_of((group.metadata("a"), self.first, at))
        )
        assert answer.error is None
        return writer

    def seen(self) -> object:
        """How the group stands: partitions by their places, members by their ids."""
        listed = [(found.members, found.overdue, found.settled, found.has_offsets) for found in self.listed()]
        offsets = [committed_at(self.connection, self.group.name, partition) for partition in self.group.partitions]
        if not listed:
            return listed, offsets
        state = self.group.state
        members = [
            (
                one.member_id,
                one.group_instance_id == self.instance,
                one.session_over,
                self.places(one.owned),
                self.places(one.target),
            )
            for one in state.members
        ]
        return listed, offsets, state.generation, state.stale, state.strategy, members

    def places(self, partitions: Any) -> list[int]:
        """Return which partitions of the topic these are."""
        return sorted(self.group.partitions.index(partition) for partition in partitions)

    def listed(self) -> list[Any]:
        """The group in the list, if it is there."""
        return list_groups(self.connection, [self.group.name])

    def rows(self) -> object:
        """All that the database holds of the other group."""
        if self.other is None:
            return None
        offsets = self.connection.execute(
            "select o.* from msgtx.group_offset o join msgtx.consumer_group g using (group_id) where g.name = %s"
            " order by o.commit_sequence",
            [self.other.name],
        ).fetchall()
        heard = self.connection.execute(
            "select h.* from msgtx.group_heartbeat h join msgtx.group_member m using (member_number)"
            " join msgtx.consumer_group g using (group_id) where g.name = %s order by 1, 2",
            [self.other.name],
        ).fetchall()
        return self.other.rows(), offsets, heard


def tried(act: Callable[[Scene], object], scene: Scene) -> object:
    """Return what an act answers, or the class of the error that it raises."""
    try:
        with scene.connection.transaction():
            return act(scene)
    except Exception as error:  # noqa: BLE001 - any refusal is an answer, and compared
        return type(error)


def released(scene: Scene) -> object:
    return release_partitions(scene.connection, scene.group.name, scene.group.numbers["a"], [scene.second])


def assigned(scene: Scene) -> object:
    return scene.group.assign({scene.second: scene.group.members[-1]} if scene.group.members else {})


def read(scene: Scene) -> object:
    found = scene.group.assignment("a")
    return found.generation, found.stale, scene.places(found.owned), scene.places(found.target)


def committed_with_a_transaction(scene: Scene) -> object:
    answer = Writer(scene.connection).decide("COMMIT", offsets=offsets_of((scene.group.metadata("a"), scene.first, 8)))
    return type(answer.error), answer.outcome


def swept(step: sweeps.Step) -> Callable[[Scene], object]:
    return lambda scene: list(to_its_end(scene.connection, step))


def neglected(scene: Scene) -> object:
    found, _ = neglected_groups(scene.connection, most=1_000)
    return [(one.members, one.dead, one.partitions) for one in found if one.name == scene.group.name]


def partitions_with_offsets_removed(scene: Scene) -> object:
    return scene.places(delete_offsets(scene.connection, scene.group.name, scene.group.partitions))


STATES: Final = ("offsets alone", "one", "two", "moving", "static", "waiting", "left", "static, left")
ACTS: Final[dict[str, Callable[[Scene], object]]] = {
    "nothing": lambda scene: None,
    "join": lambda scene: scene.group.join("n").generation,
    "join again": lambda scene: scene.group.join("a", scene.group.instances.get("a")).generation,
    "join with another subscription": lambda scene: scene.group.join("a", topics=["other"]).generation,
    "join with another strategy": lambda scene: scene.group.join("a", strategy="range").generation,
    "come back": lambda scene: scene.group.join("c", scene.instance).generation,
    "leave": lambda scene: scene.group.leave("a"),
    "beat": lambda scene: scene.group.beat("a"),
    "assign": assigned,
    "release": released,
    "read": read,
    "commit": lambda scene: scene.group.commit("a", scene.first, 8),
    "commit of a stranger": lambda scene: scene.group.commit("z", scene.first, 8),
    "commit of no member": lambda scene: scene.group.commit(None, scene.first, 8),
    "commit of an older generation": lambda scene: scene.group.commit("a", scene.first, 8, generation=1),
    "commit with a transaction": committed_with_a_transaction,
    "commit that waits": lambda scene: scene.sealed(scene.group, 8) and None,
    "reset": lambda scene: reset_offsets(scene.connection, scene.group.name, {scene.first: 1}),
    "delete offsets": partitions_with_offsets_removed,
    "delete": lambda scene: delete_group(scene.connection, scene.group.name),
    "neglected": neglected,
}
SWEEPS: Final[dict[str, Callable[[Scene], object]]] = {
    "remove members": swept(sweeps.remove_members),
    "remove heartbeats": swept(sweeps.remove_heartbeats),
    "remove superseded offsets": swept(sweeps.remove_superseded_offsets),
}


NOW: Final = datetime.now(UTC)  # the clock stands still: how long the tests take ends no session


@pytest.fixture(scope="module")
def scenes(engine: Engine, database_url: str) -> Iterator[dict[str, list[Scene]]]:
    """Each state of a group: alone, beside one that lives, and beside one whose members are dead."""
    connection = engine.dedicated()
    kinds = (None, NOW), ("two", NOW), ("static", NOW), ("two", NOW - timedelta(hours=1))
    set_clock(database_url, NOW)
    made: dict[str, list[Scene]] = {
        state: [Scene(Roster(connection, 2), Roster(connection, 1) if kind else None) for kind, _ in kinds]
        for state in STATES
    }
    for state, beside in made.items():
        for scene, (kind, moment) in zip(beside, kinds, strict=True):
            if scene.other is not None and kind is not None:
                set_clock(database_url, moment)
                scene.settle(scene.other, kind)
                scene.sealed(scene.other, 7)
                set_clock(database_url, NOW)
            scene.settle(scene.group, state)
    yield made
    connection.close()


@pytest.fixture(params=[False, True], ids=["now", "later"])
def moment(request: pytest.FixtureRequest, database_url: str) -> Iterator[None]:
    """Now, or later, when the members' sessions are over."""
    if request.param:
        set_clock(database_url, NOW + timedelta(minutes=1))
    yield
    if request.param:
        set_clock(database_url, NOW)


@pytest.mark.usefixtures("moment")
@pytest.mark.parametrize("act", [*ACTS, *SWEEPS])
@pytest.mark.parametrize("state", STATES)
def test_a_group_is_the_same_beside_another_one(scenes: dict[str, list[Scene]], state: str, act: str) -> None:
    found = []
    for scene in scenes[state]:
        group = scene.group
        kept = dict(group.numbers), dict(group.instances)
        with scene.connection.transaction(force_rollback=True):
            before = scene.rows()
            answer = tried({**ACTS, **SWEEPS}[act], scene)
            found.append((answer, scene.seen()))
            if act in ACTS:
                assert scene.rows() == before
        group.numbers, group.instances = kept
    alone, *beside = found
    assert [each for each in beside if each != alone] == []
