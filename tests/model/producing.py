"""Producers of the library, living ones and zombies."""

from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from msgtx import OffsetAndMetadata
from tests.model.history import (
    FAST,
    LIVES,
    OUTSIDE,
    PARTITIONS,
    SHORT_MS,
    History,
    counts,
    crashes,
    partitions,
    some,
)
from tests.model.lives import Decision, Life
from tests.model.membership import Commit
from tests.model.oracle import ABORT, COMMIT, OPEN, Oracle, Request
from tests.model.place import PATIENCE_SECONDS, refusal

outcomes = st.sampled_from([COMMIT, COMMIT, ABORT, OPEN])  # OPEN: left to whatever comes
sizes = st.lists(counts, min_size=1, max_size=3)
where = st.lists(partitions, min_size=1, max_size=PARTITIONS, unique=True)
offsets = st.one_of(st.integers(0, 20), st.none())
own_timeouts = st.sampled_from([None, None, SHORT_MS, 5_000])


class Producing(History):
    def _using(self) -> list[Life]:
        return [life for life in self.lives if life.producer is not None]

    def begun(self) -> list[Life]:
        return [life for life in self._using() if life.begun]

    def init_library(self, which: int, timeout: int, crash: int) -> None:
        producer = self.place.client.producer(transactional_id=self.ids[which], transaction_timeout_ms=timeout, **FAST)

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
            if gone.producer is not None:  # what it has open is aborted; a fenced one closes, too
                self.ask(gone.producer.close, lambda o, _: self._model_abort(gone, o) and None)

    def _begin(self, life: Life, timeout: int | None) -> bool:
        if life.begun:
            return True
        answer = refusal(lambda: life.producer.begin_transaction(timeout).id)
        assert answer == (life.error if life.dead else life.name)
        if not life.dead:
            life.begin(timeout)
        return life.begun

    @precondition(lambda self: self._using())
    @rule(which=some, partition=partitions, count=counts, timeout=own_timeouts, flush=st.booleans(), crash=crashes)
    def send(self, which: int, partition: int, count: int, timeout: int | None, flush: bool, crash: int) -> None:
        """Send, and hand it over now, or leave it to whatever comes next."""
        life = self.one_of(self._using(), which)
        if self._begin(life, timeout):
            self._send(life, partition, count)
            if flush and life.waiting:
                self._flush(life, crash)

    def _send(self, life: Life, partition: int, count: int) -> None:
        topic, index = self.partitions[partition]
        for value in self.content(count):
            answer = refusal(partial(life.producer.send, topic, value, partition=index))
            if life.error is not None:
                assert answer == life.error
            else:
                life.futures.append((partition, answer))
                life.waiting.setdefault(partition, []).append(value)

    def _flush(self, life: Life, crash: int) -> None:
        requests, futures = life.requests(), list(life.futures)
        self.handed(life, requests)
        life.flushed()

        def model(o: Oracle, _: Any) -> Any:
            append = o.append_flushed if life.transactional_id is None else o.append
            return together(append(*requests), requests)

        self._told(life, self.ask(lambda: self._flushed(life, futures), model, crash=crash))

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

    @precondition(lambda self: self._using())
    @rule(which=some, partition=partitions, sizes=sizes, crash=crashes)
    def send_batches(self, which: int, partition: int, sizes: list[int], crash: int) -> None:
        """Several batches for a partition, the later ones sent before the earlier are answered."""
        life = self.one_of(self._using(), which)
        if self._begin(life, None) and life.error is None and not life.waiting:
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

    @precondition(lambda self: self.begun())
    @rule(which=some, group=st.integers(0, 1), partition=partitions, at=offsets)
    def send_offsets(self, which: int, group: int, partition: int, at: int | None) -> None:
        """Commit an offset, or where a consumer stands, with the transaction (I10)."""
        life, reader = self.one_of(self.begun(), which), self.readers[0]
        if at is not None:
            sent = {(self.groups[group], partition): Commit(at % (len(self.oracle.logs[partition]) + 1))}
            positions = {self.partitions[p]: OffsetAndMetadata(commit.offset, "sent") for (_, p), commit in sent.items()}
            answer = refusal(lambda: life.producer.send_offsets_to_transaction(positions, self.groups[group]))
        elif reader.committed_by_hand:
            return
        else:
            sent = {(self.groups[0], p): Commit(offset) for p, offset in self.positions(reader).items()}
            answer = refusal(lambda: life.producer.send_offsets_to_transaction(reader.consumer))
        assert answer == life.error
        if answer is None:
            life.offsets.update(sent)

    @precondition(lambda self: self.begun())
    @rule(which=some, outcome=st.sampled_from([COMMIT, COMMIT, ABORT]), crash=crashes)
    def finish(self, which: int, outcome: str, crash: int) -> None:
        life = self.one_of(self.begun(), which)
        if outcome == COMMIT:
            self._commit(life, crash)
        else:
            self._abort(life, crash)

    @precondition(lambda self: self._using())
    @rule(
        which=some,
        where=where,
        flush=st.booleans(),
        timeout=own_timeouts,
        with_offsets=st.booleans(),
        outcome=outcomes,
        crash=crashes,
    )
    def transact(
        self, which: int, where: list[int], flush: bool, timeout: int | None, with_offsets: bool, outcome: str, crash: int
    ) -> None:
        """A transaction in one go, or the rest of one. Without a flush a small one is one call."""
        life = self.one_of(self._using(), which)
        if not self._begin(life, timeout):
            return
        for partition in where:
            self._send(life, partition, 2)
        if flush and life.waiting:
            self._flush(life, 0)
        if with_offsets and life.error is None:
            life.producer.send_offsets_to_transaction({self.partitions[0]: 0}, self.groups[1])
            life.offsets[self.groups[1], 0] = Commit(0)
        if outcome == COMMIT:
            self._commit(life, crash)
        elif outcome == ABORT:
            self._abort(life, crash)

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

    def _abort(self, life: Life, crash: int) -> None:
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

    @rule(where=where, sizes=sizes, crash=crashes)
    def send_plainly(self, where: list[int], sizes: list[int], crash: int) -> None:
        """An idempotent producer without transactions: one call for all partitions, or several for one (I1)."""
        if len(where) == 1:
            self._send_batches(self.plain, where[0], sizes, crash)
            return
        for partition in where:
            self._send(self.plain, partition, sizes[0])
        self._flush(self.plain, crash)


def together(answers: list[tuple[str | None, int, bool]], requests: list[Request]) -> Any:
    """What a flush tells: the offset of each record by partition, or the first refusal."""
    refused = [error for error, _, _ in answers if error is not None]
    if refused:
        return refused[0]
    return {
        request.partition: [offset + i for i in range(len(request.values))]
        for request, (_, offset, _) in zip(requests, answers, strict=True)
    }
