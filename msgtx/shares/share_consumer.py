"""The share consumer: a member of a share group, whose members are given records one by one."""

import contextlib
import itertools
import logging
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from msgtx import arguments, errors, forks, units
from msgtx.config import ShareConsumerConfig
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.database.retry import retried
from msgtx.errors import MsgtxError
from msgtx.observer import Observers
from msgtx.receiving.integrity import Integrity
from msgtx.receiving.poll import Poll, Stopping
from msgtx.receiving.sole_use import SoleUse
from msgtx.receiving.wakeup import Listener, Waiter
from msgtx.session.answers import Answers, HandingOut, Transactions, hands_out_here, is_open, transactions_here
from msgtx.session.enlistment import Riding, UserSession, enlist, is_begun, require_session
from msgtx.shares.holdings import ACCEPTED, Answer, Held, Holdings, Key, without
from msgtx.shares.member import ShareMember
from msgtx.shares.polls import MOST_RECORDS, SharePolls
from msgtx.store.answers import NO_ANSWERS, OffsetRange, Refused, acknowledge_records
from msgtx.store.append import PARTITIONS_AT_ONCE
from msgtx.store.records import uncollected
from msgtx.store.shares import Acquired, Acquiring, Acquisition, ensure_dead_letters
from msgtx.store.topics import Topics
from msgtx.types import Acknowledgement, ShareRecord, TopicPartition
from msgtx.units import Duration

log = logging.getLogger("msgtx.consumer")
FETCH_BYTES: Final = 8 * 1024 * 1024  # of one poll, but for one record
STAYS: Final = 16  # polls on one partition, before others have their turn
PASSED_SECONDS: Final = 0.005  # until it asks again, where others had the locks: they have them for a call
TOPICS_SECONDS: Final = 5.0  # until it looks for new partitions
OPEN: Final = "a block of share_consumer.batch(session) is open: leave it before the commit"
Mode = Literal["implicit", "explicit"]
Deserializer = Callable[[bytes | None], Any]
Answered = TypeVar("Answered")


PLAIN_RELEASE: Final[Answer] = (Acknowledgement.RELEASE, None, 0)


@dataclass(slots=True)
class Waiting:
    """Records of one row of the log that were acquired and not handed out. `until`: of `time.monotonic`."""

    records: list[ShareRecord]
    offsets: Sequence[int]
    range: OffsetRange
    until: float
    lock_seconds: float
    deserialized: int = 0  # of the records, from the first one on

    def take(self, count: int) -> tuple[list[ShareRecord], Sequence[int], OffsetRange]:
        """Take the first ones, with the offsets that go with them: those in front, and of the last one those behind it."""
        self.deserialized -= min(count, self.deserialized)
        if count == len(self.records):
            taken = (self.records, self.offsets, self.range)
            self.records = []
            return taken
        upto = OffsetRange(self.range.partition_id, self.range.first, self.offsets[count - 1])
        taken = (self.records[:count], self.offsets[:count], upto)
        self.records, self.offsets = self.records[count:], self.offsets[count:]
        self.range = OffsetRange(self.range.partition_id, upto.last + 1, self.range.last)
        return taken


class ShareRide:
    """Answers in a user's SQL transaction, whose commit is refused as long as there is a `refusal`."""

    def __init__(self, refusal: str) -> None:
        self.riding = Riding({}, self, refusal)
        self.is_lost = False

    def lost(self) -> None:
        """Note that the session was rolled back."""
        self.is_lost = True


@dataclass(frozen=True, slots=True)
class Commit:
    """Answers that are sent in one call. `member` None: there is none any more."""

    member: int | None
    call: int
    answers: dict[Key, Answer]


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
        self._polls = polls.of(config.group)
        self._engine = engine
        self._observers = observers or Observers()
        self._asked = 0.0  # when the last poll began
        self._topics = topics
        self._look_up = look_up
        self._waiter = Waiter(listener)
        self._member = ShareMember(engine, config, topics)
        self._places: dict[int, TopicPartition] = {}
        self._order: list[int] = []
        self._looked = -TOPICS_SECONDS
        self._stayed = 0  # polls on one partition
        self._asked_for = 0  # records, by the last acquisition
        self._waiting: deque[Waiting] = deque()  # what was acquired and not handed out
        self._implicit = config.acknowledgement_mode == "implicit"
        self._holdings = Holdings(config.group, implicit=self._implicit)
        self._numbers = itertools.count(1)  # of calls: one whose answer was lost is sent again under the same one
        self._dead_letters: str | None = None  # the topic of them, once it is there
        self._acquiring: Acquiring | None = None  # an acquisition whose answer did not come in time
        self._unanswered: Commit | None = None  # the last commit, whose answer did not come in time
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self.stopping = Stopping()
        self.lock_seconds = 0.0  # the shortest lock of what the last poll has handed out: the group's setting may change
        self._longest_lock = 0.0  # so far
        self.handed_out: list[OffsetRange] = []  # with the last poll
        self.closed = False
        self._sole_use = SoleUse("a share consumer")
        self._integrity = Integrity("the share consumer")
        self._takes = False  # it hands out: an exception keeps its records from the caller
        self._itself: weakref.ref[HandingOut] = weakref.ref(self)
        self._commits = False  # `commit` was called, or a transaction or session was given answers
        self._handed_out_in: Transactions = ()  # what was handed out last
        self._warned = False
        forks.follow(self, ShareConsumer._forked)

    def _forked(self) -> None:
        """Handle a fork, in the child: what was acquired is for the parent to hand out."""
        self._waiting.clear()

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
            self._settle_all()
            self._give_back()
        self._holdings.rewound = False  # what is handed out from here on is good, also if it is nothing
        if self._implicit:
            self._accept()
        else:
            self._holdings.forget_expired(self._longest_lock)
            self._look_for_commits()
        while not self.closed:
            self._polls.heard(self._waiter.clear())
            self._member.prove()
            has_passed = not self._has_waiting() and self._acquire(most)
            left = deadline - time.monotonic()
            if self._waiting:
                return True
            if left <= 0 or self.stopping.asked:
                return False
            self._waiter.wait(min(left, PASSED_SECONDS if has_passed else self.config.fetch_max_wait_ms / 1000))
        return False

    def _has_waiting(self) -> bool:
        if self._member.number is None:
            self._waiting.clear()  # its session is over: others have them
        while self._waiting and self._waiting[0].until <= time.monotonic():
            self._waiting.popleft()  # others have it
        return bool(self._waiting)

    def _accept(self) -> None:
        """Accept what was handed out: with the acquisition that follows, if there is to be one."""
        self._settle_all()
        if transactions_here() and not self._was_left_behind():
            return
        if self._note(self._holdings.given) and (
            self._has_waiting() or self._member.number is None or self._acquiring is not None
        ):
            self._settle()

    def _was_left_behind(self) -> bool:
        """Return whether transactions took what was handed out for done: it was in them, and they ended without it.

        Whoever gives answers to transactions may have polled for the next one: then it is that one's.
        """
        if not self._handed_out_in or any(map(is_open, self._handed_out_in)) or not self._holdings.given():
            return False
        if self._commits and not self._warned:
            self._warned = True  # it is said once
            log.warning(
                "share group %r: what a poll within a transaction handed out is not accepted, since the transaction ended"
                " without it: call send_acknowledgements in the next one, or the records are delivered again when their"
                " locks expire",
                self.config.group,
            )
        return not self._commits

    def _look_for_commits(self) -> None:
        if self._holdings.has_answers and not self._commits and not transactions_here():
            self._commits = True  # it is said once
            log.warning(
                "share group %r: acknowledge() was called before this poll, and commit() was not: in explicit mode a poll"
                " commits nothing, and the records are delivered again when their locks expire",
                self.config.group,
            )

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

    def _tell_failure(self, error: MsgtxError) -> None:
        self._observers.tell(lambda observer: observer.poll_failed(self.config.group, error))

    def _tell_polled(self, records: Sequence[ShareRecord]) -> None:
        if self._observers.each:
            group, since = self.config.group, self._asked
            self._observers.tell(lambda observer: observer.polled(group))
            if records:
                counts = Counter(record.topic for record in records)
                self._observers.tell(lambda observer: observer.received(group, counts, records, since))

    def _hand_out(self, most: int) -> list[ShareRecord]:
        """Hand out what waits. Raise `DeserializationError` of the first record; what is behind it waits on."""
        self.handed_out = []
        hands_out_here(self._itself)
        self._handed_out_in = transactions_here()
        left, error = self._deserialize(most)
        if error is not None and left == 0:
            raise self._released(self._waiting[0], error)
        handed_out: list[ShareRecord] = []
        while self._waiting and left > 0:
            waiting = self._waiting[0]
            records, offsets, held = waiting.take(min(len(waiting.records), left))
            self._holdings.hold(records, offsets, held, locked_until=waiting.until)
            self.lock_seconds = min(self.lock_seconds, waiting.lock_seconds) if handed_out else waiting.lock_seconds
            self.handed_out.append(held)
            handed_out += records
            left -= len(records)
            if not waiting.records:
                self._waiting.popleft()
        return handed_out

    def _released(self, waiting: Waiting, error: Exception) -> errors.DeserializationError:
        """Release the first one of these records with the next commit: nobody can answer for it. Returns what to raise."""
        (record,), offsets, held = waiting.take(1)
        if not waiting.records:
            self._waiting.popleft()
        (key,) = self._holdings.hold([record], offsets, held, locked_until=waiting.until)
        self._holdings.answer(key, (Acknowledgement.RELEASE, f"the deserializer raised {error!r}", None))
        failure = errors.DeserializationError(
            f"{record.topic}-{record.partition} offset {record.offset}: the deserializer raised {error!r}; the record is"
            " released with the next commit, and a dead letter after delivery_count_limit deliveries",
            at=(record.topic, record.partition),
            offset=record.offset,
        )
        failure.__cause__ = error
        self._tell_failure(failure)
        return failure

    def _deserialize(self, most: int) -> tuple[int, Exception | None]:
        """Deserialize what waits. Return how many records, up to `most`, can be handed out, and why not the next one."""
        if self._key_deserializer is None and self._value_deserializer is None:
            return most, None
        count = 0
        for waiting in self._waiting:
            for record in waiting.records[waiting.deserialized : most - count]:
                try:
                    key = record.key if self._key_deserializer is None else self._key_deserializer(record.key)
                    value = record.value if self._value_deserializer is None else self._value_deserializer(record.value)
                except Exception as error:  # noqa: BLE001 - of the user's function, whatever it is; `_hand_out` raises it
                    return count + waiting.deserialized, error
                record.key, record.value = key, value
                waiting.deserialized += 1
            count += min(len(waiting.records), most - count)
        return count, None

    def stop(self) -> None:
        """End an iteration (or the poll that waits now) soon. For another thread or a signal handler, too."""
        self.stopping.asked = True
        self._waiter.wake()

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

    def ride(self, session: UserSession) -> "ShareRide":
        """Have a session refuse its commit until `end_ride` is called."""
        self.settle()
        connection, enlistment = enlist(session, self._engine)
        ride = ShareRide(OPEN)
        enlistment.add(connection, ride.riding)
        return ride

    def end_ride(self, session: UserSession, ride: "ShareRide") -> None:
        """Have the session's commit bring the answers for what was handed out. Raise `IllegalState` after a rollback."""
        if not ride.is_lost:
            ride.riding.refusal = None
            self.commit(session=session)
        elif is_begun(session):
            raise errors.IllegalState(
                "the session was rolled back while its records were handled, and used again: what it then commits would come"
                " without their answers; raise an exception instead, or use a savepoint (session.begin_nested())",
                reason="rolled back",
            )
        else:
            self.undo(release=True)

    def fail_ride(self, ride: "ShareRide | None") -> None:
        """Have the session refuse its commit for good, and the records handed out again."""
        if ride is not None:
            ride.riding.refusal = "what its records lead to has failed: roll the session back"
        self.undo(release=True)

    @contextlib.contextmanager
    def riding(self, session: UserSession, records: Iterable[ShareRecord], refusal: str) -> Iterator["ShareRide"]:
        """Have the session's commit accept these records (explicit mode); `refusal`: of a commit within the block.

        Whatever rolls the session back, they are held as before. Raise what `acknowledge` and `commit` raise.
        """
        self.settle()
        connection, enlistment = enlist(session, self._engine)
        answers = self.accepting(records)
        ride = ShareRide(refusal)
        enlistment.add(connection, ride.riding)
        if answers is not None:
            enlistment.add(connection, answers)
        yield ride
        ride.riding.refusal = None

    def accepting(self, records: Iterable[ShareRecord]) -> Answers | None:
        """Return answers that accept these records (explicit mode), for a transaction or a session to commit.

        If it does not, they are held as before, unless others have them by then. Raise what `acknowledge` and `commit` do.
        """
        self.settle()
        for key in [self._holdings.require(record) for record in records]:
            self._holdings.answer(key, ACCEPTED)
        return self._take(self._hold_again)

    def held(self, records: Iterable[ShareRecord]) -> list[ShareRecord]:
        """Return those of these records that this consumer holds, as far as it knows."""
        return self._holdings.of(records)

    def dead_letter_topic(self) -> str:
        """Return the name of the group's topic of dead letters, which is made if there is none."""
        if self._dead_letters is None:
            self._member.join()  # the group is there then
            self._dead_letters = self._calls(lambda connection: ensure_dead_letters(connection, self.config.group))
        return self._dead_letters

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
                self._commit()
                return
            self._settle_all()
            connection, enlistment = enlist(session, self._engine)
            taken = self._take(self._release if self._implicit else self._hold_again)
            if taken is not None:
                enlistment.add(connection, taken)

    def _commit(self) -> None:
        self._commits = True
        self._settle_all()
        if self._implicit:
            self._give_back()
        if self._note(self._holdings.given):
            self._settle()

    def _note(self, given: Callable[[], dict[Key, Answer]]) -> bool:
        """Note a commit of these answers, in one step: an undo in another thread comes before it, or leaves it alone."""
        with self._holdings.lock:
            answers = given()
            if answers:
                self._unanswered = Commit(self._member.number, next(self._numbers), answers)
        return bool(answers)

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
            self._undo()
            self._try_to_give_back()

    def _start_over(self) -> None:
        deadline = time.monotonic() + self.config.request_timeout_ms / 1000
        with until(deadline):
            self._have_answers_pending(deadline)
        self._member.leave(deadline)
        self._undo()
        self._forget()
        self._integrity.torn = False

    def undo(self, *, release: bool) -> None:
        """Handle that a transaction is not committed: what was handed out by then will be handed out again.

        `release`: in implicit mode at once. In explicit mode the caller may answer for it again before the next poll. May be
        called in any thread.
        """
        if self.closed:
            return
        self._undo()
        if release and self._implicit:
            self._try_to_give_back()

    def _undo(self) -> None:
        with self._integrity.steps(), self._holdings.lock:
            self._holdings.undo(but=() if self._unanswered is None else self._unanswered.answers)

    def _give_back(self) -> None:
        if undone := self._holdings.undone():
            self._again(partial(self._release_if_held, undone))
            self._holdings.released(undone)

    def _try_to_give_back(self, undone: dict[Key, Held] | None = None) -> None:
        """Release what is undone, by one attempt: else the next poll does it, or the lock expires."""
        held = self._holdings.undone() if undone is None else undone
        seconds = self.config.request_timeout_ms / 1000
        if held and not self.closed:
            with contextlib.suppress(MsgtxError), until(time.monotonic() + seconds, silence=seconds):
                self._release_if_held(held)
                self._holdings.released(held)

    def _release_if_held(self, held: dict[Key, Held]) -> None:
        self._answer_if_held([each.range for each in held.values()], PLAIN_RELEASE)

    def transaction_answers(self) -> Answers | None:
        """Return the answers that a transaction may commit; they are its own from here on."""
        self.settle()
        return self._take(self._release)

    def settle(self) -> None:
        """Do what has to be done on connections of its own before answers are handed over."""
        self._require_open()
        self._integrity.require()
        self._settle_all()

    def _settle_all(self) -> None:
        self._settle()
        if self._dead_letters is None and self._holdings.has_rejects:
            self.dead_letter_topic()  # else they would wait for the next acquisition

    def _take(self, take_back: Callable[[Answers], None]) -> Answers | None:
        self._commits = True
        with self._integrity.steps(), self._holdings.lock:
            if self._implicit and self._holdings.rewound:
                raise errors.IllegalState(
                    f"share group {self.config.group!r}: what was handed out last is to be handed out again, after an abort,"
                    " a rollback or rewind(): poll before you commit it",
                    group=self.config.group,
                    reason="poll first",
                )
            given = self._holdings.to_take()
            if not given:
                return None
            number = self._member.number
            if number is None:
                self._forget()
                raise errors.InvalidRecordState(
                    f"share group {self.config.group!r}: the session of this member is over",
                    group=self.config.group,
                    reason="session over",
                )
            return self._holdings.take(given, member=number, call=next(self._numbers), take_back=take_back)

    def _hold_again(self, answers: Answers) -> None:
        with self._integrity.steps():
            self._holdings.hold_again(answers)

    def _release(self, answers: Answers) -> None:
        """Release the records of an aborted transaction. Pending ones were released by the abort itself."""
        with self._integrity.steps():
            again = self._holdings.hold_again(answers)
        self._try_to_give_back(again)

    def renew(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Have the locks of these begin anew, those that this member holds; return them. For any thread."""
        return self._answer_if_held(ranges, (Acknowledgement.RENEW, None, None))

    def _answer_if_held(self, ranges: Sequence[OffsetRange], answer: Answer) -> list[OffsetRange]:
        held, number = list(ranges), self._member.number
        if number is None:
            return []
        with self._engine.connection() as connection:
            for _ in range(2):
                columns = self._holdings.columns(number, [(each, answer) for each in held])
                refused = acknowledge_records(connection, columns, call_number=None) if held else []
                if not refused:
                    break
                held = without(held, [each for _, each in refused])
        return held

    def _settle(self) -> None:
        """Make the last commit's call until it is answered, or time is over: then again, before another one."""
        commit = self._unanswered
        if commit is None:
            return
        refused = None
        columns = NO_ANSWERS if commit.member is None else self._holdings.columns_of(commit.member, commit.answers)
        if commit.member is not None and columns.partition_ids:
            asking = Acquiring(
                self.config.group, commit.member, commit.call, columns.partition_ids[:1], 0, 0, columns,
                is_whole=self._implicit or self._asked_for == 1,
            )  # fmt: skip
            with contextlib.suppress(errors.UnknownMember):
                refused = self._again(partial(self._polls.acquire, asking)).refused
        self._answered(commit.answers, refused)

    def _answered(self, answers: dict[Key, Answer], refused: Sequence[Refused] | None) -> None:
        with self._integrity.steps():
            self._unanswered = None
            self._holdings.answered(answers, refused)

    def _acquire(self, most: int) -> bool:
        """Acquire records. Returns whether there may be some already that it did not get, since others had the locks."""
        order = self._partitions()
        number = self._member.join()
        commit = None
        if self._acquiring is None or self._acquiring.member_number != number:  # what another member had is others'
            self._acquiring, commit = self._acquisition(number, order, most)
        else:  # the whole call again: another one would not find what it had
            self._acquiring = self._acquiring._replace(answers=NO_ANSWERS)
        asked = time.monotonic()
        try:
            found, refused, has_passed = self._again(self._ask)
        except errors.UnknownMember:
            if commit is not None:
                self._answered(commit.answers, None)
            self._forget()
            return False
        with self._integrity.steps():
            self._acquiring = None
            for each in found:
                lock = each.lock_ms / 1000
                self._longest_lock = max(self._longest_lock, lock)
                records, offsets = self._records_of(each), each.offsets or range(each.range.first, each.range.last + 1)
                if records:
                    self._waiting.append(Waiting(records, offsets, each.range, asked + lock, lock))
            if commit is not None:
                self._answered(commit.answers, refused)
        return has_passed

    def _acquisition(self, number: int, order: Sequence[int], most: int) -> tuple[Acquiring, Commit | None]:
        """Return what the member is to ask for, and the commit that goes with it."""
        self._asked_for, shares = most, most <= MOST_RECORDS
        first = self._polls.place(list(self._places)) if shares else order[0]
        commit = self._unanswered if self._implicit else None
        answers = NO_ANSWERS if commit is None else self._holdings.columns_of(number, commit.answers)
        if len(answers.partition_ids) == 1 and answers.partition_ids[0] != first:
            if shares:
                self._settle()
                commit, answers = None, NO_ANSWERS
            elif self._stayed < STAYS:
                first = answers.partition_ids[0]  # one state of that partition has both then
        self._stayed = self._stayed + 1 if answers.partition_ids == (first,) else 0
        order = [first, *(each for each in order if each != first)]
        call = next(self._numbers) if commit is None else commit.call
        return Acquiring(self.config.group, number, call, order, most, FETCH_BYTES, answers), commit

    def _ask(self) -> Acquisition:
        assert self._acquiring is not None
        asked, self._acquiring = self._acquiring, self._acquiring._replace(is_again=True)
        return self._polls.acquire(asked)

    def _forget(self) -> None:
        """Note that the session is over: what was held is others'."""
        self._member.gone()
        self._waiting.clear()
        self._holdings.clear()
        self._acquiring = self._unanswered = None

    def _records_of(self, acquired: Acquired) -> list[ShareRecord]:
        topic, partition = self._places[acquired.range.partition_id]
        columns = (
            repeat(topic),
            repeat(partition),
            acquired.offsets or range(acquired.range.first, acquired.range.last + 1),
            acquired.timestamps or repeat(acquired.max_timestamp),
            acquired.keys or repeat(None),
            acquired.values or (),
            acquired.headers() or repeat(()),
            repeat(acquired.delivery_count),
        )
        with uncollected():
            return list(map(ShareRecord, *columns))

    def _partitions(self) -> list[int]:
        now = time.monotonic()
        if now >= self._looked + TOPICS_SECONDS:
            places: dict[int, TopicPartition] = {}
            for name in self._topics:
                topic = self._again(partial(self._look_up, name, bool(self._places)))
                if topic is None and self._looked < 0:
                    raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}; create it first", topic=name)
                if topic is None:
                    continue  # deleted since; the others are read, and this one when it is made again
                places |= {each: TopicPartition(name, index) for index, each in enumerate(topic.partition_ids)}
            if not places:
                raise errors.UnknownTopicOrPartition(
                    f"there is no topic {self._topics[0]!r} any more; create it first", topic=self._topics[0]
                )
            if places.keys() != self._places.keys():
                self._order = sorted(places)
                self._waiter.watch(places)
            self._places, self._looked = places, now
        turn = PARTITIONS_AT_ONCE if len(self._order) > PARTITIONS_AT_ONCE else 1
        self._order = [*self._order[turn:], *self._order[:turn]]
        return self._order

    def _calls(self, attempt: Callable[[Any], Any]) -> Any:
        def once() -> Any:
            with self._engine.connection() as connection:
                return attempt(connection)

        return self._again(once)

    def _again(self, once: Callable[[], Answered]) -> Answered:
        seconds = self.config.request_timeout_ms / 1000
        return retried(once, deadline=time.monotonic() + seconds, pause=self.config.retry_backoff_ms / 1000, silence=seconds)

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
                    self._have_answers_pending(deadline)
                    self._integrity.require()
                    self._settle_all()
                    if self._note(self._holdings.explicit):
                        self._settle()
            except MsgtxError as error:
                log.warning("share group %r: closing: %s", self.config.group, error)
            finally:
                self._waiter.watch(())
                self._member.close(deadline)

    def _have_answers_pending(self, deadline: float) -> None:
        """Have open transactions store the answers that they were given: the records are others' when this member leaves."""
        for answers in self._holdings.open():
            if answers.hand_over is not None:
                answers.hand_over(max(0.0, deadline - time.monotonic()))

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
            if self._waiting[0].until <= time.monotonic() or self._member.is_silent:
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

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
