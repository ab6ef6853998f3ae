"""A group with members: they come, go, die, divide the partitions, hand them over, and commit offsets (I11).

Source: internals: groups.
Each step of membership is the store's own call; so a member may be late with any of them, and commit with anything that it
was ever told. What the library's consumers make of it is told elsewhere.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from msgtx import OffsetAndMetadata
from msgtx.consumer.membership import divide
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.groups.members import (
    GroupState,
    assign_partitions,
    describe_members,
    heartbeat,
    join_group,
    leave_group,
    member_assignment,
    release_partitions,
)
from tests.model.history import LONG_MS, PARTITIONS, SHORT_MS, crashes, partitions, some
from tests.model.lives import Division, Guest, Life
from tests.model.membership import UNKNOWN_MEMBER, Commit, Person
from tests.model.oracle import ABORT, COMMIT, OPEN, Oracle
from tests.model.place import metadata_of, refusal
from tests.model.producing import Producing

GUESTS, DIVISIONS = 4, 4
STATIC = "instance"
timeouts = st.sampled_from([SHORT_MS, LONG_MS, LONG_MS])
parts = st.lists(partitions, min_size=1, max_size=PARTITIONS, unique=True)
who = st.sampled_from(["owner", "owner", "anybody", "nobody"])
whens = st.sampled_from([0, 0, 0, 1, 2, -1])  # with which of the generations that it learned


class Joining(Producing):
    def __init__(self) -> None:
        super().__init__()
        self.divisions: list[Division] = []

    @initialize(members=st.integers(0, 2), static=st.booleans())
    def gather(self, members: int, static: bool) -> None:
        """Perhaps there are members already: one that owns all, and one that waits for what it shall own."""
        for _ in range(members):
            self.join(which=1, static=static and not self.guests, timeout=LONG_MS, everything=True, crash=0)
            self._divide(0)
            for guest in self.guests:
                self._look(guest, 0)

    def owner(self, partition: int, which: int) -> Guest:
        """Return a partition's owner; without one, any member."""
        place = self.oracle.group(self.crowd).places.get(partition)
        owners = [guest for guest in self.guests if place is not None and guest.number == place.owner]
        return self.one_of(owners or self.guests, which)

    @rule(which=some, static=st.booleans(), timeout=timeouts, everything=st.booleans(), crash=crashes)
    def join(self, which: int, static: bool, timeout: int, everything: bool, crash: int) -> None:
        """Somebody comes, or comes again: a member, or one that left or was given up."""
        if len(self.guests) < GUESTS and (which % 2 or not self.guests):
            self.guests.append(Guest(f"member-{len(self.guests)}", STATIC if static else None))
            guest = self.guests[-1]
        else:
            guest = self.one_of(self.guests, which)
        topics = frozenset(self.topics if everything else self.topics[:1])
        who = Person(guest.member, guest.instance, timeout, topics, 0, 0)

        def real() -> Any:
            joined = self.place.store(
                lambda c: join_group(
                    c, self.crowd, member_id=guest.member, group_instance_id=guest.instance, client_host="model",
                    client_process=1, session_timeout_ms=timeout, strategy="cooperative-sticky", topics=topics, pattern=None,
                )
            )  # fmt: skip
            return joined if isinstance(joined, str) else (joined.member_number, joined.generation)

        number, generation = self.ask(real, lambda o, answer: o.join(self.crowd, answer[0], who), crash=crash)
        if number != guest.number:
            guest.number, guest.beats = number, 0
        guest.told.append(generation)

    @precondition(lambda self: self.guests)
    @rule(which=some, how=st.sampled_from(["leave", "beat", "beat", "look", "look"]), beat=st.integers(-1, 1), crash=crashes)
    def live(self, which: int, how: str, beat: int, crash: int) -> None:
        """A member leaves, says that it lives (again, or with what was said before), or looks what is its own."""
        guest = self.one_of(self.guests, which)
        if how == "beat":
            self.beat(guest, beat, crash)
        elif how == "look":
            self._look(guest, crash)
        else:
            self.ask(
                lambda: self.place.store(lambda c: leave_group(c, self.crowd, guest.member)),
                lambda o, _: o.leave(self.crowd, guest.member),
                crash=crash,
            )

    def beat(self, guest: Guest, further: int, crash: int) -> None:
        guest.beats += max(further, 0)
        number, beat = guest.number, max(0, guest.beats + min(further, 0))
        who: dict[str, Any] = {"member_number": number, "member_id": guest.member, "group_instance_id": guest.instance}

        def real() -> Any:
            beaten = self.place.store(lambda c: heartbeat(c, self.crowd, **who, number=beat))
            return beaten if isinstance(beaten, str) else (beaten.generation, beaten.stale)

        answer = self.ask(
            real, lambda o, _: o.heartbeat(self.crowd, number, guest.member, guest.instance, beat), crash=crash
        )
        if not isinstance(answer, str):
            guest.told.append(answer[0])

    def _look(self, guest: Guest, crash: int) -> None:
        def real() -> Any:
            found = self.place.store(lambda c: member_assignment(c, self.crowd, guest.number))
            if isinstance(found, str):
                return found
            owned = {self.partition_ids.index(each): since for each, since in found.owned.items()}
            return found.generation, found.stale, owned, {self.partition_ids.index(each) for each in found.target}

        def model(o: Oracle, _: Any) -> Any:
            group, number = o.group(self.crowd), guest.number
            if number not in group.members:
                return UNKNOWN_MEMBER
            owned = {p: place.since for p, place in group.places.items() if place.owner == number}
            heir_of = {p for p, place in group.places.items() if place.heir == number}
            return group.generation, o.stale(self.crowd), owned, heir_of

        answer = self.ask(real, model, crash=crash)
        if not isinstance(answer, str):
            guest.told.append(answer[0])

    # ── who owns what ──

    @precondition(lambda self: self.guests)
    @rule(
        how=st.sampled_from(["library", "by hand", "later", "arrives", "topics"]),
        spread=st.lists(st.integers(0, GUESTS), min_size=PARTITIONS, max_size=PARTITIONS),
        which=some,
        crash=crashes,
    )
    def rebalance(self, how: str, spread: list[int], which: int, crash: int) -> None:
        """Divide the partitions: as the library does, or in any way, at once or when others have changed the group."""
        if how == "library":
            self._divide(crash)
        elif how == "topics":
            self.place.observer.topics.create(self.place.name("more"))
            for oracle in self.oracles:
                oracle.topics, oracle.past = oracle.topics + 1, []
        elif how != "arrives":
            self.divisions = [*self.divisions[-DIVISIONS + 1 :], self._division(spread)]
            if how == "by hand":
                self._assign(self.divisions[-1], crash)
        elif self.divisions:
            self._assign(self.one_of(self.divisions, which), crash)

    def _state(self) -> GroupState | None:
        with self.place.observer.runtime.engine.connection() as connection:
            return describe_members(connection, self.crowd)

    def _division(self, spread: list[int]) -> Division:
        """Give each partition to a member, whatever it subscribes to, or to a former member, or to none."""
        state = self._state()
        assert state is not None
        members = [member.number for member in state.members] + [guest.number for guest in self.guests]
        heirs = {p: members[who % len(members)] for p, who in enumerate(spread) if who}
        return Division(state.generation, self.oracle.topics, state.topics_version, heirs)

    def _assign(self, division: Division, crash: int) -> None:
        targets = {self.partition_ids[p]: number for p, number in division.heirs.items()}
        version, generation = division.topics_version, division.generation
        self.ask(
            lambda: self.place.store(
                lambda c: assign_partitions(c, self.crowd, generation=generation, topics_version=version, targets=targets)
            ),
            lambda o, _: o.assign(self.crowd, generation, division.topics, division.heirs),
            crash=crash,
        )

    def _divide(self, crash: int) -> None:
        def real() -> dict[int, int]:
            self.place.store(lambda c: divide(c, self.crowd))
            state = self._state()
            members = [] if state is None else state.members
            return {self.partition_ids.index(each): member.number for member in members for each in member.target}

        def model(o: Oracle, heirs: dict[int, int]) -> dict[int, int]:
            group = o.group(self.crowd)
            if o.stale(self.crowd) and group.members:
                o.assign(self.crowd, group.generation, o.topics, heirs)
                group = o.group(self.crowd)
                wanted = frozenset[str]().union(*(person.topics for person in group.members.values()))
                assert {p for p, tp in enumerate(self.partitions) if tp.topic in wanted} == set(heirs), "somebody's, each"
                assert all(self.partitions[p].topic in group.members[n].topics for p, n in heirs.items()), "a subscriber's"
            return {p: place.heir for p, place in group.places.items() if place.heir is not None}

        self.ask(real, model, crash=crash)

    @precondition(lambda self: self.guests)
    @rule(which=some, given=parts, own=st.booleans(), looks=st.booleans(), crash=crashes)
    def release(self, which: int, given: list[int], own: bool, looks: bool, crash: int) -> None:
        """A member gives partitions up, perhaps such as are not its own; perhaps who gets them looks at once."""
        guest = self.owner(given[0], which) if own else self.one_of(self.guests, which)
        ids = [self.partition_ids[p] for p in given]
        generation = self.ask(
            lambda: self.place.store(lambda c: release_partitions(c, self.crowd, guest.number, ids)),
            lambda o, _: o.release(self.crowd, guest.number, given),
            crash=crash,
        )
        guest.told.append(generation)
        if looks:
            for other in self.guests:
                self._look(other, 0)

    # ── offsets ──

    def _commits(self, who: str, which: int, where: list[int], at: int, when: int) -> dict[tuple[str, int], Commit]:
        """By the owner of the first of these partitions, by anyone who ever was a member, or without a member."""
        offsets = {p: at % (len(self.oracle.logs[p]) + 1) for p in where}
        if who == "nobody" or not self.guests:
            return {(self.crowd, p): Commit(offset) for p, offset in offsets.items()}
        guest = self.owner(where[0], which) if who == "owner" else self.one_of(self.guests, which)
        return {(self.crowd, p): guest.commit(offset, when) for p, offset in offsets.items()}

    @rule(who=who, which=some, where=parts, at=st.integers(0, 20), when=whens, crash=crashes)
    def commit_as_member(self, who: str, which: int, where: list[int], at: int, when: int, crash: int) -> None:
        """Outside any transaction."""
        commits = self._commits(who, which, where, at, when)
        by_id = {self.partition_ids[p]: OffsetAndMetadata(commit.offset) for (_, p), commit in commits.items()}
        metadata = metadata_of(self.crowd, next(iter(commits.values())))
        self.ask(
            lambda: self.place.store(lambda c: commit_offsets(c, {metadata: by_id})),
            lambda o, _: o.commit_offsets(commits),
            crash=crash,
        )

    @precondition(lambda self: self._using())
    @rule(
        life=some,
        who=who,
        which=some,
        where=parts,
        at=st.integers(0, 20),
        when=whens,
        sends=st.sampled_from(["nothing", "at once", "flushed"]),
        outcome=st.sampled_from([COMMIT, COMMIT, ABORT, OPEN]),
        crash=crashes,
    )
    def transact_as_member(
        self, life: int, who: str, which: int, where: list[int], at: int, when: int, sends: str, outcome: str, crash: int
    ) -> None:
        """With a transaction (I10): offsets alone, or with records, in one call or flushed; perhaps it is decided later."""
        user = self.one_of(self._using(), life)
        if not self._begin(user, None):
            return
        if sends != "nothing" and user.error is None:
            self._send(user, where[0], 1)
            if sends == "flushed":
                self._flush(user, 0)
        self._send_offsets(user, self._commits(who, which, where, at, when))
        if outcome == COMMIT:
            self._commit(user, crash)
        elif outcome == ABORT:
            self._abort(user, crash)

    def _send_offsets(self, life: Life, commits: dict[tuple[str, int], Commit]) -> None:
        assert life.producer is not None
        producer, who = life.producer, metadata_of(self.crowd, next(iter(commits.values())))
        positions = {self.partitions[p]: OffsetAndMetadata(commit.offset, "sent") for (_, p), commit in commits.items()}
        answer = refusal(lambda: producer.send_offsets_to_transaction(positions, who))
        assert answer == life.error
        if answer is None:
            life.offsets.update(commits)
