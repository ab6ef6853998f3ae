"""The share consumer: a member of a share group, whose members are given records one by one."""

import contextlib
import logging
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self

from msgtx import arguments, errors, forks, units
from msgtx.config import ShareConsumerConfig
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.errors import MsgtxError
from msgtx.observer import Observers
from msgtx.receiving.integrity import Integrity
from msgtx.receiving.poll import Poll, Stopping
from msgtx.receiving.sole_use import SoleUse
from msgtx.receiving.wakeup import Listener, Waiter
from msgtx.session.answers import Answers, HandingOut, hands_out_here
from msgtx.session.enlistment import UserSession, enlist, require_session
from msgtx.shares import rides
from msgtx.shares.acquiring import Acquisitions
from msgtx.shares.answering import Answering
from msgtx.shares.calls import Calls
from msgtx.shares.holdings import Holdings
from msgtx.shares.member import ShareMember
from msgtx.shares.polls import SharePolls
from msgtx.shares.rides import ShareRide
from msgtx.shares.waiting import Deserializer, Waiting
from msgtx.store.shares.answers import OffsetRange
from msgtx.store.topics.topics import Topics
from msgtx.types import Acknowledgement, ShareRecord
from msgtx.units import Duration

log = logging.getLogger("msgtx.consumer")
PASSED_SECONDS: Final = 0.005  # until it asks again, where others had the locks: they have them for a call
Mode = Literal["implicit", "explicit"]


class ShareConsumer:
    """Reads records that no other member of its share group has. Made by `client.share_consumer()`; for one thread.

    A record is acquired for `record_lock_duration_ms` of the group. Implicit mode accepts, with the next `poll` or `commit`,
    what was handed out; explicit mode accepts what `acknowledge` says. Source: internals: shares; KIP-932.
    """

    def __init__(
        self,
        engine: Engine,
        config: ShareConsumerConfig,
        topics: Sequence[str],
        *,
        look_up: Topics,
        listener: Listener,
        polls: SharePolls,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        observers: Observers | None = None,
    ) -> None:
        self.config = config
        self.closed = False
        self._engine = engine
        self._observers = observers or Observers()
        self._implicit = config.acknowledgement_mode == "implicit"
        self._waiter = Waiter(listener)
        self._polls = polls.of(config.group)
        self._member = ShareMember(engine, config, topics)
        self._integrity = Integrity("the share consumer")
        self._holdings = Holdings(config.group, implicit=self._implicit)
        self._waiting = Waiting(self._holdings, key_deserializer, value_deserializer)
        calls = Calls(engine, config)
        self._answering = Answering(
            config, calls, holdings=self._holdings, integrity=self._integrity, member=self._member, polls=self._polls
        )
        self._acquisitions = Acquisitions(
            config,
            calls,
            topics,
            answering=self._answering,
            holdings=self._holdings,
            integrity=self._integrity,
            look_up=look_up,
            member=self._member,
            polls=self._polls,
            waiter=self._waiter,
            waiting=self._waiting,
        )
        self._asked = 0.0  # when the last poll began
        self._takes = False  # it hands out: an exception keeps its records from the caller
        self.stopping = Stopping()
        self._sole_use = SoleUse("a share consumer")
        self._itself: weakref.ref[HandingOut] = weakref.ref(self)
        forks.follow(self, ShareConsumer._forked)

    def _forked(self) -> None:
        """Handle a fork, in the child: what was acquired is for the parent to hand out."""
        self._waiting.rows.clear()

    # ── reading ──

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[ShareRecord]:
        """Return up to `max_records` (default `max_poll_records`) records; [] when `timeout` seconds are over.

        In implicit mode what was handed out before is accepted first, unless a producer's transaction that began in this
        thread or task is open: then it is the transaction's to commit. Explicit answers wait for `commit`. Raise
        `IllegalState` if the consumer was interrupted in the middle of a step (see `rewind`).
        """
        seconds, most = arguments.seconds("timeout", timeout), self._most(max_records)
        hands_out_here(self._itself)
        try:
            with self._use():
                if not self._await_records(seconds, most):
                    self.stopping.heard()  # `stop` ended this poll, not those that follow
                    return []
                return self._polled(most)
        except BaseException as error:
            self._kept_from_the_caller(error)
            raise

    def begin(self, timeout: float = 1.0, max_records: int | None = None) -> Poll[ShareRecord]:
        """Return a poll in two halves: one waits, in another thread, and one returns records, in this task."""
        seconds, most = arguments.seconds("timeout", timeout), self._most(max_records)
        hands_out_here(self._itself)
        return Poll(partial(self._await_records, seconds, most), partial(self._polled_at_once, most), self._one_by_one)

    def _most(self, max_records: int | None) -> int:
        if max_records is None:
            return self.config.max_poll_records
        return min(arguments.whole("max_records", max_records, least=1), arguments.LARGEST_INT4)  # what the database takes

    def _await_records(self, timeout: float, most: int) -> bool:
        """Wait until records are there to be handed out. Returns False when time is over, or after `stop`."""
        with self._use():
            self._asked, self._takes = time.monotonic(), False
            self._integrity.require()
            try:
                found = self._acquired(self._asked + timeout, most)
            except MsgtxError as error:
                self._tell_failure(error)
                raise
            if not found:
                self._tell_polled([])
            return found

    def _acquired(self, deadline: float, most: int) -> bool:
        if self._holdings.has_undone:
            self._answering.settle_all()
            self._answering.give_back()
        self._holdings.rewound = False  # what is handed out from here on is good, also if it is nothing
        if not self._implicit:
            self._holdings.forget_expired(self._acquisitions.longest_lock)
            self._answering.look_for_commits()
        elif self._answering.accept() and not self._acquisitions.takes_a_commit:
            self._answering.settle()
        while not self.closed:
            self._polls.heard(self._waiter.clear())
            self._member.prove()
            has_passed = not self._acquisitions.has_waiting and self._acquisitions.acquire(most)
            left = deadline - time.monotonic()
            if self._waiting:
                return True
            if left <= 0 or self.stopping.asked:
                return False
            self._waiter.wait(min(left, PASSED_SECONDS if has_passed else self.config.fetch_max_wait_ms / 1000))
        return False

    def _polled_at_once(self, most: int) -> list[ShareRecord]:
        try:
            return self._polled(most)
        except BaseException as error:
            self._kept_from_the_caller(error)
            raise

    def _polled(self, most: int) -> list[ShareRecord]:
        self._takes = True
        records = self._hand_out(most)
        self._tell_polled(records)
        return records

    def _kept_from_the_caller(self, error: BaseException) -> None:
        if self._takes:
            self._integrity.raised(error)

    def _hand_out(self, most: int) -> list[ShareRecord]:
        hands_out_here(self._itself)
        self._answering.handed_out()
        try:
            return self._waiting.hand_out(most)
        except errors.DeserializationError as error:
            self._tell_failure(error)
            raise

    def _tell_failure(self, error: MsgtxError) -> None:
        self._observers.tell(lambda observer: observer.poll_failed(self.config.group, error))

    def _tell_polled(self, records: Sequence[ShareRecord]) -> None:
        if self._observers.each:
            group, since = self.config.group, self._asked
            self._observers.tell(lambda observer: observer.polled(group))
            if records:
                counts = Counter(record.topic for record in records)
                self._observers.tell(lambda observer: observer.received(group, counts, records, since))

    def __iter__(self) -> Iterator[ShareRecord]:
        """Yield records forever; `stop`, from another thread or a signal handler, ends it.

        They are handed out one by one: implicit mode accepts those that the caller has come to, many at a time.
        """
        while not self.stopping.asked and not self.closed:
            if self._await_records(1.0, self.config.max_poll_records):
                yield from self._one_by_one()
        self.stopping.heard()

    def _one_by_one(self) -> Iterator[ShareRecord]:
        self._tell_polled([])
        while not self.stopping.asked and not self.closed and self._waiting:
            if self._waiting.rows[0].until <= time.monotonic() or self._member.is_silent:
                return
            try:
                record = self._hand_out(1)[0]
                if self._observers.each:
                    self._tell_one(record)
            except BaseException as error:
                self._integrity.raised(error)
                raise
            yield record

    def _tell_one(self, record: ShareRecord) -> None:
        group = self.config.group
        self._observers.tell(lambda observer: observer.received(group, {record.topic: 1}, (record,), None))

    def stop(self) -> None:
        """End an iteration (or the poll that waits now) soon. For another thread or a signal handler, too."""
        self.stopping.asked = True
        self._waiter.wake()

    @property
    def handed_out(self) -> list[OffsetRange]:
        """What the last poll has handed out."""
        return self._waiting.handed_out

    @property
    def lock_seconds(self) -> float:
        """The shortest lock of it."""
        return self._waiting.lock_seconds

    # ── answering ──

    def acknowledge(
        self,
        record: ShareRecord,
        answer: Acknowledgement = Acknowledgement.ACCEPT,
        *,
        reason: str | None = None,
        delay_ms: Duration | None = None,
    ) -> None:
        """Answer for a record that this consumer has handed out; the last answer before the `commit` counts.

        `reason`: why it is rejected or released, for who reads the dead letter. `delay_ms`: after which a released record is
        delivered again; None: the group's back-off. Raise `IllegalState` in implicit mode, `InvalidRecordState` for a record
        that is not held, `TransactionConflict` for one that an open transaction has.
        """
        self._require_open()
        arguments.an_instance("record", record, ShareRecord, "a ShareRecord that was handed out")
        arguments.an_instance("answer", answer, Acknowledgement, "an Acknowledgement")
        reason = None if reason is None else arguments.an_instance("reason", reason, str, "a text")
        if self._implicit:
            raise errors.IllegalState(
                "this share consumer accepts what it has handed out: acknowledgement_mode is implicit",
                reason="acknowledgement_mode",
            )
        hands_out_here(self._itself)  # the transaction that begins here may be for it
        key = self._holdings.require(record)
        delay = None if delay_ms is None else units.milliseconds("delay_ms", delay_ms)
        if delay is not None and not (answer is Acknowledgement.RELEASE and 0 <= delay < 1 << 31):
            raise errors.InvalidRequest(
                f"delay_ms is for RELEASE, from 0 to 2147483647, not {delay_ms!r} for {answer.name}", name="delay_ms"
            )
        self._holdings.answer(key, (answer, reason, delay))

    def held(self, records: Iterable[ShareRecord]) -> list[ShareRecord]:
        """Return those of these records that this consumer holds, as far as it knows."""
        return self._holdings.of(records)

    def renew(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Have the locks of these begin anew, those that this member holds; return them. For any thread."""
        return self._answering.answer_if_held(ranges, (Acknowledgement.RENEW, None, None))

    def dead_letter_topic(self) -> str:
        """Return the name of the group's topic of dead letters, which is made if there is none."""
        return self._answering.dead_letter_topic()

    def commit(self, *, session: UserSession | None = None) -> None:
        """Make the answers given so far real, all of them or none; in implicit mode accept what was handed out.

        `session`: they are written with the COMMIT of SQLAlchemy's `Session` or `Connection`, which fails if one does not
        hold; after a rollback, also to a savepoint, the next poll hands the records out again. An error before this call
        needs `rewind`: `batch` does it all. Raise `InvalidRecordState` if one does not hold: it is forgotten then, and
        calling again applies the rest; `TransactionConflict`; with a session `IllegalState` in implicit mode, if what was
        handed out last was rewound.
        """
        with self._use():
            self._integrity.require()
            if session is None:
                self._answering.commit()
                return
            self._answering.settle_all()
            connection, enlistment = enlist(session, self._engine)
            taken = self._answering.take(release=self._implicit)
            if taken is not None:
                enlistment.add(connection, taken)

    def rewind(self) -> None:
        """Have what was handed out, and is not committed, handed out again, to any member: call it after an exception.

        Answers that were not committed are forgotten. What a transaction or a session was given ends with that. After an
        abort, a rollback, or a failed block of `batch` it is not needed. It counts as a delivery. A consumer that a signal
        handler's exception (Ctrl-C) interrupted in the middle of a step raises `IllegalState` from polls and commits until
        then: it leaves its group here, which gives its records to others at once, and joins again with the next poll.
        """
        with self._use():
            if self._integrity.torn:
                self._start_over()
                return
            self._answering.undo()
            self._answering.try_to_give_back()

    def _start_over(self) -> None:
        deadline = time.monotonic() + self.config.request_timeout_ms / 1000
        with until(deadline):
            self._answering.have_pending(deadline)
        self._member.leave(deadline)
        self._answering.undo()
        self._answering.forget()
        self._acquisitions.forget()
        self._integrity.torn = False

    def undo(self, *, release: bool) -> None:
        """Handle that a transaction is not committed: what was handed out by then will be handed out again.

        `release`: in implicit mode at once. In explicit mode the caller may answer for it again before the next poll. May be
        called in any thread.
        """
        if self.closed:
            return
        self._answering.undo()
        if release and self._implicit:
            self._answering.try_to_give_back()

    # ── answers of transactions and sessions ──

    def transaction_answers(self) -> Answers | None:
        """Return the answers that a transaction may commit; they are its own from here on."""
        self.settle()
        return self._answering.take(release=True)

    def accepting(self, records: Iterable[ShareRecord]) -> Answers | None:
        """Return answers that accept these records (explicit mode), for a transaction or a session to commit.

        If it does not, they are held as before, unless others have them by then. Raise what `acknowledge` and `commit` do.
        """
        self.settle()
        return self._answering.accepting(records)

    def settle(self) -> None:
        """Do what has to be done on connections of its own before answers are handed over."""
        self._require_open()
        self._integrity.require()
        self._answering.settle_all()

    @contextlib.contextmanager
    def batch(
        self, session: UserSession, timeout: float = 1.0, max_records: int | None = None
    ) -> Iterator[list[ShareRecord]]:
        """Poll, and have the session's next commit bring the answers for these records with the rows of the block.

        Implicit mode accepts the records; explicit mode has the answers that the block gives. The commit comes behind the
        block, and is refused within it. If the block raises, or the session is rolled back, now or later, the records are
        handed out again. [] when `timeout` seconds are over: nothing rides then. Raise what `poll` and `commit` raise.
        """
        require_session(session)
        records = self.poll(timeout, max_records)
        if not records:
            yield records
            return
        ride: ShareRide | None = None
        try:
            ride = self.ride(session)
            yield records
            self.end_ride(session, ride)
        except BaseException:
            self.fail_ride(ride)
            raise

    # A batch in three parts: an event loop has each done where it may wait.

    def ride(self, session: UserSession) -> ShareRide:
        """Have a session refuse its commit until `end_ride` is called."""
        self.settle()
        return rides.begin(enlist(session, self._engine))

    def end_ride(self, session: UserSession, ride: ShareRide) -> None:
        """Have the session's commit bring the answers for what was handed out. Raise `IllegalState` after a rollback."""
        if rides.is_whole(ride, session):
            self.commit(session=session)
        else:
            self.undo(release=True)

    def fail_ride(self, ride: ShareRide | None) -> None:
        """Have the session refuse its commit for good, and the records handed out again."""
        if ride is not None:
            ride.riding.refusal = "what its records lead to has failed: roll the session back"
        self.undo(release=True)

    @contextlib.contextmanager
    def riding(self, session: UserSession, records: Iterable[ShareRecord], refusal: str) -> Iterator[ShareRide]:
        """Have the session's commit accept these records (explicit mode); `refusal`: of a commit within the block.

        Whatever rolls the session back, they are held as before. Raise what `acknowledge` and `commit` raise.
        """
        self.settle()
        enlistment = enlist(session, self._engine)
        answers = self._answering.accepting(records)
        with rides.refusing(enlistment, answers, refusal) as ride:
            yield ride

    # ── the end ──

    def _require_open(self) -> None:
        self._engine.origin.require("a share consumer")
        if self.closed:
            raise errors.IllegalState("the share consumer is closed", reason="closed")

    def _use(self) -> contextlib.AbstractContextManager[None]:
        return self._sole_use.call(self._require_open)

    def close(self) -> None:
        """Send the answers given, release the rest and leave. May be called twice.

        It takes no longer than `request_timeout_ms` in all. In another thread a poll that waits ends; another call that is
        under way there is waited for.
        """
        if self.closed or self._engine.origin.is_parent:
            return
        self.closed = True  # no call begins any more
        self._waiter.wake()
        seconds = self.config.request_timeout_ms / 1000
        deadline = time.monotonic() + seconds
        with contextlib.ExitStack() as block:
            try:
                block.enter_context(self._sole_use.close(seconds))
                with until(deadline):
                    self._answering.have_pending(deadline)
                    self._integrity.require()
                    self._answering.commit_last()
            except MsgtxError as error:
                log.warning("share group %r: closing: %s", self.config.group, error)
            finally:
                self._waiter.watch(())
                self._member.close(deadline)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
