"""Readers: long-lived consumers with their tokens, fetches from anywhere, offsets committed by hand."""

from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import rule

from msgtx import Isolation, OffsetAndMetadata, protocol
from tests.model.history import PARTITIONS, READING, Reader, crashes, partitions
from tests.model.membership import Commit
from tests.model.oracle import OPEN, UNSTABLE, Name, Oracle
from tests.model.place import refusal
from tests.model.producing import Producing

SHORT_WAIT_MS: Final = 100  # for offsets that are not decided meanwhile
readers = st.integers(0, 1)
offsets = st.one_of(st.integers(0, 30), st.none())


class Reading(Producing):
    @rule(which=readers, crash=crashes)
    def poll(self, which: int, crash: int) -> None:
        self._poll(self.readers[which], 0 if self.remembers else crash)

    @rule(which=readers)
    def read_on(self, which: int) -> None:
        self.drain(self.readers[which])

    def drain(self, reader: Reader) -> None:
        """Until nothing comes: then all that may be read was read, and nothing overdue is in the way (I5, I12)."""
        while self._poll(reader, 0):
            pass
        for partition in range(PARTITIONS):
            assert reader.at[partition] >= reader.end(self.oracle, partition), partition
            _, blocking = self.oracle.blocking(partition)
            assert blocking is None or blocking not in self.oracle.overdue(), "I12"

    def _poll(self, reader: Reader, crash: int) -> int:
        def real() -> tuple[Any, ...]:
            records = reader.consumer.poll(0)
            found: dict[int, list[tuple[int, bytes | None]]] = {}
            for record in records:
                found.setdefault(self.partitions.index((record.topic, record.partition)), []).append(
                    (record.offset, record.value)
                )
            ended = [name for name in self.oracle.overdue() if self.place.outcome(name) != "OPEN"]
            return found, self.positions(reader), ended

        def model(oracle: Oracle, answer: tuple[Any, ...]) -> tuple[Any, ...]:
            found, positions, ended = answer
            if ended:
                oracle.expire(*ended)
            for partition, position in positions.items():
                passed = [row for row in reader.visible(oracle, partition) if row[0] < position]
                assert found.get(partition, []) == passed, f"{partition}: handed out {found}, it passed {passed}"
                assert reader.at[partition] <= position <= max(reader.at[partition], reader.end(oracle, partition))
            return answer

        found, positions, _ = self.ask(real, model, crash=crash)
        reader.at.update(positions)
        reader.handed.update(found)
        if found:
            reader.committed_by_hand = False
        return len(found)

    def positions(self, reader: Reader) -> dict[int, int]:
        return {p: reader.consumer.position(partition) for p, partition in enumerate(self.partitions)}

    @rule(which=readers, partition=partitions, at=offsets, polls=st.booleans())
    def move(self, which: int, partition: int, at: int | None, polls: bool) -> None:
        """Go anywhere, also into what is open (P22, P45), or back to the group's offsets; perhaps read from there."""
        self._move(which, partition, at)
        if polls:
            self.drain(self.readers[which])

    def _move(self, which: int, partition: int, at: int | None) -> None:
        reader = self.readers[which]
        if at is not None:
            reader.seek(partition, self.partitions[partition], at % (len(self.oracle.logs[partition]) + 1))
            return
        reader = self.readers[0]
        reader.rewind({p: offset for (group, p), offset in self.oracle.offsets.items() if group == self.groups[0]})
        assert self.positions(reader) == reader.at
        for gone in [p for p, began in reader.at.items() if began > len(self.oracle.logs[p])]:
            reader.seek(gone, self.partitions[gone], 0)  # a crash of the server took back where it began

    @rule(group=st.integers(0, 1), partition=partitions)
    def begin_anew(self, group: int, partition: int) -> None:
        """A consumer that begins at the group's offset waits for sealed transactions, and aborts an overdue one."""
        name, place = self.groups[group], self.partitions[partition]
        settings: dict[str, Any] = {**READING, "request_timeout_ms": SHORT_WAIT_MS}

        def real() -> Any:
            with self.place.client.consumer(group=name, **settings) as consumer:
                consumer.assign([place])
                return refusal(lambda: consumer.position(place))

        def model(oracle: Oracle, _: Any) -> Any:
            pending = oracle.pending(name, partition)
            oracle.expire(*(each for each in pending if each in oracle.overdue()))
            return UNSTABLE if oracle.pending(name, partition) else oracle.offsets.get((name, partition), 0)

        self.ask(real, model)

    @rule(partition=partitions, counts=st.lists(st.integers(1, 3), min_size=1, max_size=2))
    def begin_at_the_end(self, partition: int, counts: list[int]) -> None:
        """A consumer that begins at the end, reads, and goes back before it has committed, begins there again."""
        settings = {**READING, "auto_offset_reset": "latest"}
        with self.place.client.consumer(group=self.place.name("late"), max_poll_records=3, **settings) as consumer:
            consumer.assign(self.partitions)
            reader = Reader(consumer, Isolation.READ_COMMITTED)
            reader.at = self._ends(reader)
            began = dict(reader.at)
            for count in counts:
                self.send_plainly(where=[partition], sizes=[count], crash=0)
                self.drain(reader)
                consumer.rewind()
                assert self.positions(reader) == began, "it goes back to where it began"
                reader.at = dict(began)
                self.drain(reader)

    def _ends(self, reader: Reader) -> dict[int, int]:
        def real() -> tuple[dict[int, int], list[Name]]:
            positions = self.positions(reader)
            return positions, [name for name in self.oracle.overdue() if self.place.outcome(name) != OPEN]

        def model(oracle: Oracle, answer: Any) -> Any:
            oracle.expire(*answer[1])
            return {p: reader.end(oracle, p) for p in range(PARTITIONS)}, answer[1]

        positions: dict[int, int] = self.ask(real, model)[0]
        return positions

    @rule(partition=partitions, at=st.lists(st.integers(0, 30), min_size=2, max_size=4), closes=st.booleans())
    def commit_in_background(self, partition: int, at: list[int], closes: bool) -> None:
        """The newest commit counts, whichever is waited for; what was handed over is there when `close` returns."""
        ends = len(self.oracle.logs[partition]) + 1
        with self.place.client.consumer(group=self.groups[0], **READING) as consumer:
            consumer.assign(self.partitions)
            commits = {(self.groups[0], partition): Commit(at[-1] % ends)}

            def real() -> None:
                for number, offset in enumerate(at):
                    last = number == len(at) - 1
                    consumer.commit({self.partitions[partition]: offset % ends}, wait=last and not closes)
                if closes:
                    consumer.close()

            self.ask(real, lambda o, _: o.commit_offsets(commits))
            consumer.close()  # what still was on its way has arrived
        self.readers[0].committed_by_hand = True

    @rule(partition=partitions, at=offsets, crash=crashes)
    def commit_offsets(self, partition: int, at: int | None, crash: int) -> None:
        """Outside any transaction: one offset, or all positions."""
        reader = self.readers[0]
        if at is None:
            positions, chosen = self.positions(reader), None
        else:
            positions = {partition: at % (len(self.oracle.logs[partition]) + 1)}
            chosen = {self.partitions[partition]: OffsetAndMetadata(positions[partition], "by hand")}
        offsets = {(self.groups[0], p): Commit(offset) for p, offset in positions.items()}
        self.ask(lambda: reader.consumer.commit(chosen), lambda o, _: o.commit_offsets(offsets), crash=crash)
        reader.committed_by_hand = True

    @rule(
        isolation=st.sampled_from(list(Isolation)),
        partition=partitions,
        at=st.integers(0, 40),
        max_bytes=st.sampled_from([1, 40, 1 << 20]),
    )
    def fetch(self, isolation: Isolation, partition: int, at: int, max_bytes: int) -> None:
        """A reader without a past begins anywhere, also inside a batch, also where nothing is yet."""
        ends = len(self.oracle.logs[partition])
        at %= ends + 2
        name = self.partitions[partition]
        answer = self.place.protocol(lambda c: protocol.fetch(c, {name: at}, isolation, max_bytes)[name])
        if at > ends:
            assert answer == "OffsetOutOfRange"
            return
        assert not isinstance(answer, str)
        everything = isolation is Isolation.READ_UNCOMMITTED
        rows = list(self.oracle.everything(partition) if everything else self.oracle.committed(partition))
        wanted = [row for row in rows if row[0] >= at]
        found = [(record.offset, record.value) for record in answer.records]
        assert found == wanted[: len(found)]
        assert bool(found) == bool(wanted)
        assert len(found) == len([row for row in wanted if row[0] < answer.position])
        stable, blocking = self.oracle.blocking(partition)
        assert (answer.last_stable_offset, answer.log_end_offset) == (stable, ends)
        assert answer.blocked_by == blocking
