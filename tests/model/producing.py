"""Producers of the library, living ones and zombies."""

from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from msgtx import OffsetAndMetadata
from tests.model.history import (
    FAST,
    LIVES,
    LONG_MS,
    OUTSIDE,
    PARTITIONS,
    SHORT_MS,
    History,
    counts,
    crashes,
    ids,
    partitions,
    some,
)
from tests.model.lives import Decision, Life
from tests.model.oracle import ABORT, COMMIT, Oracle, Request
from tests.model.place import PATIENCE_SECONDS, refusal

timeouts = st.sampled_from([LONG_MS, SHORT_MS])
own_timeouts = st.sampled_from([None, None, SHORT_MS, 5_000])


class Producing(History):
    def _using(self, *, begun: bool) -> list[Life]:
        return [life for life in self.lives if life.producer is not None and life.begun is begun]

    @rule(which=ids, timeout=timeouts, crash=crashes)
    def init(self, which: int, timeout: int, crash: int) -> None:
        """Take an id over: whoever used it is a zombie from here on (I7)."""
        producer = self.place.client.producer(
            transactional_id=self.ids[which], transaction_timeout_ms=timeout, **FAST
        )

        def real() -> tuple[int, int]:
            producer.init_transactions()
            found = producer.begin_transaction().id  # of which nothing is ever sent
            producer.abort_transaction()
            return found[:2]

        found = self.ask(real, lambda o, answer: o.init(self.ids[which], timeout, answer[0]), crash=crash)
        self.born(Life(self.ids[which], *found, producer))

    def born(self, life: Life) -> None:
        self.lives.append(life)
        if len(self.lives) > LIVES:
            gone = self.lives.pop(0)
            if gone.producer is not None:
                self._close(gone)

    def _close(self, life: Life) -> None:
        """An open transaction is aborted; a fenced producer closes, too."""
        self.ask(life.producer.close, lambda o, _: self._model_abort(life, o) and None)

    @precondition(lambda self: self._using(begun=False))
    @rule(which=some, timeout=own_timeouts)
    def begin(self, which: int, timeout: int | None) -> None:
        life = self.one_of(self._using(begun=False), which)
        answer = refusal(lambda: life.producer.begin_transaction(timeout).id)
        assert answer == (life.error if life.dead else life.name)
        if not life.dead:
            life.begin(timeout)

    @precondition(lambda self: self._using(begun=True))
    @rule(which=some, partition=partitions, count=counts)
    def send(self, which: int, partition: int, count: int) -> None:
        """Send, and leave it to whatever comes next to hand it over."""
        self._send(self.one_of(self._using(begun=True), which), partition, count)

    def _send(self, life: Life, partition: int, count: int) -> None:
        for value in self.content(count):
            topic, index = self.partitions[partition]
            answer = refusal(partial(life.producer.send, topic, value, partition=index))
            if life.error is not None:
                assert answer == life.error
            else:
                life.futures.append((partition, answer))
                life.waiting.setdefault(partition, []).append(value)

    @precondition(lambda self: any(life.waiting for life in self._using(begun=True)))
    @rule(which=some, crash=crashes)
    def flush(self, which: int, crash: int) -> None:
        life = self.one_of([life for life in self._using(begun=True) if life.waiting], which)
        requests, futures = life.requests(), list(life.futures)
        self.handed(life, requests)
        life.flushed()
        answer = self.ask(
            lambda: self._flushed(life, futures), lambda o, _: together(o.append(*requests), requests), crash=crash
        )
        self._told(life, answer)

    def _flushed(self, life: Life, futures: list[tuple[int, Any]]) -> Any:
        """Returns the offset of each record by partition, or the first refusal."""
        life.producer.flush(PATIENCE_SECONDS)
        found: dict[int, list[int]] = {}
        for partition, future in futures:
            metadata = refusal(partial(future.result, PATIENCE_SECONDS))
            if isinstance(metadata, str):
                return metadata
            found.setdefault(partition, []).append(metadata.offset)
        return found

    def handed(self, life: Life, requests: list[Request]) -> None:
        for request in requests:
            life.sent(request)
            if request.producer != OUTSIDE:
                self.keep(request)

    def _told(self, life: Life, answer: Any) -> None:
        if isinstance(answer, str):
            life.error = answer

    @precondition(lambda self: any(not life.waiting for life in self._using(begun=True)))
    @rule(which=some, partition=partitions, sizes=st.lists(counts, min_size=1, max_size=3), crash=crashes)
    def send_batches(self, which: int, partition: int, sizes: list[int], crash: int) -> None:
        """Several batches for a partition, the later ones sent before the earlier are answered."""
        life = self.one_of([life for life in self._using(begun=True) if not life.waiting], which)
        if life.error is not None:
            return
        self._send_batches(life, partition, sizes[:1] if self.remembers else sizes, crash)

    def _send_batches(self, life: Life, partition: int, sizes: list[int], crash: int) -> None:
        parts = [self.content(size) for size in sizes]
        requests = []
        for part in parts:
            requests.append(life.request(partition, part))
            self.handed(life, requests[-1:])

        def real() -> Any:
            topic, index = self.partitions[partition]
            futures = [life.producer.send_batch(topic, part, partition=index) for part in parts]
            life.producer.flush(PATIENCE_SECONDS)
            found = [future.result(PATIENCE_SECONDS).offsets for future in futures]
            return [first for offsets in found for spans in offsets.values() for first, _ in spans]

        def model(o: Oracle, _: Any) -> Any:
            append = o.append_flushed if life.transactional_id is None else o.append
            found = []
            for request in requests:
                ((error, offset, _),) = append(request)
                if error is not None:
                    return error
                found.append(offset)
            return found

        self._told(life, self.ask(lambda: refusal(real), model, crash=crash))

    @precondition(lambda self: self._using(begun=True))
    @rule(which=some, group=st.integers(0, 1), partition=partitions, at=st.integers(0, 20))
    def send_offsets(self, which: int, group: int, partition: int, at: int) -> None:
        life = self.one_of(self._using(begun=True), which)
        offset = at % (len(self.oracle.logs[partition]) + 1)
        positions = {self.partitions[partition]: OffsetAndMetadata(offset, "by the model")}
        answer = refusal(lambda: life.producer.send_offsets_to_transaction(positions, self.groups[group]))
        assert answer == life.error
        if answer is None:
            life.offsets[self.groups[group], partition] = offset

    @precondition(lambda self: self._using(begun=True) and not self.readers[0].committed_by_hand)
    @rule(which=some)
    def send_offsets_of_the_reader(self, which: int) -> None:
        """What was read is committed with what was made of it (I10)."""
        life, reader = self.one_of(self._using(begun=True), which), self.readers[0]
        answer = refusal(lambda: life.producer.send_offsets_to_transaction(reader.consumer))
        assert answer == life.error
        if answer is None:
            positions = self.positions(reader)
            life.offsets.update({(self.groups[0], p): at for p, at in positions.items()})

    @precondition(lambda self: self._using(begun=True))
    @rule(which=some, crash=crashes)
    def commit(self, which: int, crash: int) -> None:
        self._commit(self.one_of(self._using(begun=True), which), crash)

    @precondition(lambda self: self._using(begun=False))
    @rule(which=some, where=st.lists(partitions, min_size=1, max_size=3, unique=True), offsets=st.booleans(), crash=crashes)
    def commit_whole(self, which: int, where: list[int], offsets: bool, crash: int) -> None:
        """A small transaction in one go: nothing is flushed before the commit."""
        life = self.one_of(self._using(begun=False), which)
        if life.dead:
            return
        assert life.producer.begin_transaction().id == life.name
        life.begin(None)
        for partition in where:
            self._send(life, partition, 2)
        if offsets and life.error is None:
            life.producer.send_offsets_to_transaction({self.partitions[0]: 0}, self.groups[1])
            life.offsets[self.groups[1], 0] = 0
        self._commit(life, crash)

    def _commit(self, life: Life, crash: int) -> None:
        requests, tails, offsets, name = life.requests(), dict(life.handed), dict(life.offsets), life.name
        tails.update({request.partition: request.last for request in requests})
        whole = bool(requests) and not life.handed and not life.decides
        failed = life.error

        def model(o: Oracle, _: Any) -> str | None:
            if failed is not None:
                return failed
            if whole:
                return o.commit_whole(name, requests, offsets)
            if requests and isinstance(answer := together(o.append(*requests), requests), str):
                return answer
            return o.decide(name, COMMIT, tails, offsets)[0] if tails or offsets else None

        answer = self.ask(lambda: refusal(life.producer.commit_transaction), model, crash=crash)
        if failed is None:
            for request in requests:
                life.sent(request)
                if not whole:
                    self.keep(request)
            life.flushed()
            life.decides = life.decides or (not whole and bool(tails or offsets))
            if tails or offsets:
                self.keep(Decision(name, COMMIT, tails, offsets))
        self._told(life, answer)
        if answer is None:
            life.ended()

    @precondition(lambda self: self._using(begun=True))
    @rule(which=some, crash=crashes)
    def abort(self, which: int, crash: int) -> None:
        life = self.one_of(self._using(begun=True), which)
        answer = self.ask(
            lambda: refusal(life.producer.abort_transaction), lambda o, _: self._model_abort(life, o), crash=crash
        )
        if answer is None:
            if life.handed or life.decides:
                self.keep(Decision(life.name, ABORT, dict(life.handed), {}))
            for partition in life.handed:
                life.sequences[partition] = self.oracle.last_sequence(life.producer_id, life.epoch, partition) + 1
            life.ended()
        self._told(life, answer)

    def _model_abort(self, life: Life, oracle: Oracle) -> str | None:
        if life.dead:
            return life.error
        if not life.handed and not life.decides:
            return None
        return oracle.decide(life.name, ABORT, dict(life.handed), {})[0]

    # ── outside transactions ──

    @rule(where=st.lists(partitions, min_size=1, max_size=PARTITIONS, unique=True), count=counts, crash=crashes)
    def send_plainly(self, where: list[int], count: int, crash: int) -> None:
        """An idempotent producer without transactions (I1)."""
        life = self.plain
        for partition in where:
            self._send(life, partition, count)
        requests, futures = life.requests(), list(life.futures)
        self.handed(life, requests)
        life.flushed()
        self.ask(
            lambda: self._flushed(life, futures), lambda o, _: together(o.append_flushed(*requests), requests), crash=crash
        )

    @rule(partition=partitions, sizes=st.lists(counts, min_size=1, max_size=3), crash=crashes)
    def send_batches_plainly(self, partition: int, sizes: list[int], crash: int) -> None:
        self._send_batches(self.plain, partition, sizes, crash)


def together(answers: list[tuple[str | None, int, bool]], requests: list[Request]) -> Any:
    """What a flush tells: the offset of each record by partition, or the first refusal."""
    refused = [error for error, _, _ in answers if error is not None]
    if refused:
        return refused[0]
    return {
        request.partition: [offset + i for i in range(len(request.values))]
        for request, (_, offset, _) in zip(requests, answers, strict=True)
    }
