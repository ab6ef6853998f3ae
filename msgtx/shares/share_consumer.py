"""The share consumer: a member of a share group. Each record goes to one member at a time."""

import contextlib
import logging
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Generic, cast

from msgtx import errors, forks
from msgtx.config import ShareConsumerConfig
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.errors import MsgtxError
from msgtx.observer import Observers
from msgtx.receiving.calls import Calls
from msgtx.receiving.deserializers import Deserializers
from msgtx.receiving.poll import Poll
from msgtx.receiving.reader import Reader
from msgtx.receiving.wakeup import Listener
from msgtx.session.answers import Answers, HandingOut, hands_out_here
from msgtx.session.enlistment import UserSession, require_session
from msgtx.shares.acquiring import Acquisitions
from msgtx.shares.answering import Answering
from msgtx.shares.holdings import Holdings
from msgtx.shares.member import ShareMember
from msgtx.shares.polls import SharePolls
from msgtx.shares.rides import ShareRide, ShareRides
from msgtx.shares.waiting import Waiting
from msgtx.store.topics.topics import Topics
from msgtx.types import Acknowledgement, K, ShareRecord, V
from msgtx.units import Duration

log = logging.getLogger("msgtx.consumer")


class ShareConsumer(Reader[ShareConsumerConfig, ShareRecord[K, V]], Generic[K, V]):
    """Reads records that no other member of its share group has. Made by `client.share_consumer()`; for one thread.

    A record is acquired for `record_lock_duration_ms` of the group. Implicit mode accepts the returned records with the next
    `poll` or `commit`; an iteration returns them one by one, and accepts many at a time. Explicit mode accepts those of
    `acknowledge`. Source: internals: shares; KIP-932.
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
        deserializers: Deserializers,
        observers: Observers | None = None,
    ) -> None:
        super().__init__("share consumer", config, listener, observers)
        self._topics = topics
        self._polls = polls.of(config.group)
        calls = Calls(engine, config)
        self._member = ShareMember(config, calls, topics, self._polls.losses)
        self.holdings = Holdings(config.group, implicit=config.acknowledgement_mode == "implicit")
        self.waiting_records = Waiting(self.holdings, deserializers)
        self.answering = Answering(
            config,
            calls,
            holdings=self.holdings,
            integrity=self._integrity,
            member=self._member,
            polls=self._polls,
            sole_use=self._sole_use,
        )
        self._acquisitions = Acquisitions(
            config,
            calls,
            topics,
            answering=self.answering,
            holdings=self.holdings,
            integrity=self._integrity,
            look_up=look_up,
            member=self._member,
            polls=self._polls,
            sole_use=self._sole_use,
            stopping=self.stopping,
            waiter=self._waiter,
            waiting=self.waiting_records,
        )
        self.rides = ShareRides(engine, self.answering, self._sole_use)
        self._itself: weakref.ref[HandingOut] = weakref.ref(self)
        forks.follow(self, ShareConsumer._forked)

    def _forked(self) -> None:
        """Handle a fork, in the child: acquired records are for the parent to return."""
        self.waiting_records.rows.clear()

    def _reads(self) -> str:
        return f", {', '.join(self._topics)}"

    # ── reading ──

    def poll(self, timeout: Duration = 1.0, max_records: int | None = None) -> list[ShareRecord[K, V]]:
        """Return up to `max_records` (default `max_poll_records`) records; [] when `timeout` seconds are over.

        Implicit mode first accepts the records returned before, unless a producer's transaction that began in this thread
        or task is open: they are for that transaction to commit. Explicit answers wait for `commit`. Raise `IllegalState` if
        the consumer was interrupted in the middle of a step (see `rewind`).
        """
        hands_out_here(self._itself)
        return self._guarded(self._polled, timeout, max_records)

    def begin(self, timeout: Duration = 1.0, max_records: int | None = None) -> Poll[ShareRecord[K, V]]:
        """Return a poll in two halves; see `Reader.begin`."""
        hands_out_here(self._itself)
        return super().begin(timeout, max_records)

    def _look(self, deadline: float, most: int) -> bool:
        self.rides.ask()
        if self.holdings.has_undone:
            self.answering.settle_all()
            self.answering.give_back()
        self.holdings.rewound = False  # later answers are for the records that this poll returns, also if it returns none
        if not self.holdings.implicit:
            self.holdings.forget_expired(self._acquisitions.longest_lock)
            self.answering.look_for_commits()
        elif self.answering.accept() and not self._acquisitions.takes_a_commit:
            self.answering.settle()
        return self._acquisitions.await_records(deadline, most)

    def _take(self, most: int) -> list[ShareRecord[K, V]]:
        records = self._hand_out(most)
        self._tell_polled(records)
        return records

    def _hand_out(self, most: int) -> list[ShareRecord[K, V]]:
        hands_out_here(self._itself)
        self.answering.handed_out()
        try:
            return cast(list[ShareRecord[K, V]], self.waiting_records.hand_out(most))
        except errors.DeserializationError as error:
            self._tell_failure(error)
            raise

    def _each(self) -> Iterator[ShareRecord[K, V]]:
        self._tell_polled([])
        while not self.stopping.asked and not self.closed and self.waiting_records:
            if self.waiting_records.rows[0].until <= time.monotonic() or self._member.is_silent:
                return
            try:
                record = self._hand_out(1)[0]
                if self._observers.each:
                    self._tell_one(record)
            except BaseException as error:
                self._integrity.raised(error)
                raise
            yield record

    # ── answering ──

    def acknowledge(
        self,
        record: ShareRecord[Any, Any],
        answer: Acknowledgement = Acknowledgement.ACCEPT,
        *,
        reason: str | None = None,
        delay_ms: Duration | None = None,
    ) -> None:
        """Answer for a record that this consumer has returned; the last answer before the `commit` counts.

        `reason`: of a rejection or release, for the dead letter. `delay_ms`: after which a released record is delivered
        again; None: the group's back-off. Raise `IllegalState` in implicit mode, `InvalidRecordState` for a record that is
        not held, `TransactionConflict` for one that an open transaction has.
        """
        hands_out_here(self._itself)  # the transaction that begins here may be for it
        self.answering.acknowledge(record, answer, reason, delay_ms)

    def commit(self, *, session: UserSession | None = None) -> None:
        """Commit the answers given so far, all of them or none; in implicit mode accept the returned records.

        `session`: as for `Consumer.commit`. Its COMMIT writes the answers, and fails if one does not hold. After a rollback,
        also to a savepoint, the next poll returns the records again. An error before this call needs `rewind`: `batch` does
        it all. Raise `InvalidRecordState` if an answer does not hold: it is forgotten, and a second call applies the rest;
        `TransactionConflict`; with a session `IllegalState` in implicit mode, if the records returned last were rewound.
        """
        if session is not None:
            self.rides.commit(session)
            return
        with self._use():
            self._integrity.require()
            self.answering.commit()

    def rewind(self) -> None:
        """Have the returned, uncommitted records delivered again, to any member. Call it after an exception.

        Answers that were not committed are forgotten; those that a transaction or session has end with it. After an abort,
        a rollback, or a failed block of `batch` it is not needed. It counts as a delivery. After a signal handler's
        exception (Ctrl-C) in the middle of a step, polls and commits raise `IllegalState` until this call: the consumer
        leaves its group, which frees its records at once, and joins again with the next poll.
        """
        with self._use():
            if not self._integrity.torn:
                self.answering.undo()
                self.answering.try_to_give_back()
                return
            deadline = time.monotonic() + self.config.request_timeout_ms / 1000
            with until(deadline):
                self.answering.have_pending(deadline)
            self._member.leave(deadline)
            self.answering.undo()
            self.answering.forget()
            self._acquisitions.forget()
            self._integrity.torn = False

    @contextlib.contextmanager
    def batch(
        self, session: UserSession, timeout: Duration = 1.0, max_records: int | None = None
    ) -> Iterator[list[ShareRecord[K, V]]]:
        """Poll, and have the session's next commit write the answers for these records with the rows of the block.

        Implicit mode accepts the records; explicit mode has the answers that the block gives. The commit comes after the
        block, and is refused within it. If the block raises, or the session is rolled back, now or later, the records are
        returned again. [] when `timeout` seconds are over: nothing rides then. Raise the errors of `poll` and `commit`.
        """
        require_session(session)
        records = self.poll(timeout, max_records)
        if not records:
            yield records
            return
        ride: ShareRide | None = None
        try:
            ride = self.rides.begin(session)
            yield records
            self.rides.end(session, ride)
        except BaseException:
            self.rides.fail(ride)
            raise

    def transaction_answers(self) -> Answers | None:
        """Return the answers that a transaction may commit; they are its own from here on."""
        self.answering.ready()
        return self.answering.take(release=True)

    def undo(self, *, release: bool) -> None:
        """Handle that a transaction is not committed; see `Answering.not_committed`."""
        self.answering.not_committed(release=release)

    def settle(self) -> None:
        """Send what is to be sent on connections of its own, before answers are given to a transaction or session."""
        self.rides.ask()
        self.answering.ready()

    # ── the end ──

    def close(self) -> None:
        """Send the answers given, release the other records, and leave the group. May be called twice.

        It takes at most `request_timeout_ms`. A poll that waits in another thread ends at once; any other call there is
        waited for.
        """
        self._close()

    def _finish(self, deadline: float) -> None:
        try:
            self.answering.have_pending(deadline)
            self._integrity.require()
            try:
                self.answering.commit_last()
            except errors.CommitsLost as lost:  # earlier ones; the last ones may still be stored
                self._tell_closing(lost)
                self.answering.commit_last()
        except MsgtxError as error:
            self._tell_closing(error)

    def _tell_closing(self, error: MsgtxError) -> None:
        log.warning("share group %r: closing: %s", self.config.group, error)

    def _leave(self, deadline: float) -> None:
        self._member.close(deadline)
