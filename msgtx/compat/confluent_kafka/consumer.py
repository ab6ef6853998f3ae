"""confluent-kafka's `Consumer` over a consumer of msgtx."""

import contextlib
import functools
import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import ClusterMetadata

import msgtx
from msgtx import errors
from msgtx.compat.confluent_kafka import metadata, settings
from msgtx.compat.confluent_kafka.clients import ClientOf
from msgtx.compat.confluent_kafka.error import as_kafka, translated
from msgtx.compat.confluent_kafka.serving import Statistics, deadline_of, none_or, seconds_left

log = logging.getLogger("msgtx.compat")
Rebalance = Callable[["Consumer", list[TopicPartition]], object]
MOST_MESSAGES: Final = 1_000_000  # of one `consume`
NO_OFFSETS: Final = frozenset({OFFSET_INVALID, OFFSET_STORED})
OFFSET_TAIL: Final = -2000  # and below: so many messages before the end
SERVE_SECONDS: Final = 0.05  # between two looks for callbacks that are due, while there are messages
LOOK_SECONDS: Final = 0.5  # between two looks for the ends of partitions, or for topics that are not there
REFUSED_SECONDS: Final = 0.1  # between two looks at a database that refuses
TURN_SECONDS: Final = 0.01  # that a poll leaves to a thread that waits for it
OTHERS_SECONDS: Final = 30.0  # a callback that waits for another thread's call of the same consumer would never end
P = ParamSpec("P")
R = TypeVar("R")


class GroupMember:
    """What `consumer_group_metadata` returns: the member, for a producer's transaction."""

    def __init__(self, member: msgtx.GroupMetadata, settled: Callable[[Mapping[msgtx.TopicPartition, int]], object]) -> None:
        self.member = member
        self.settled = settled  # told of the offsets that a transaction holds


def _in_turn(method: "Callable[Concatenate[Consumer, P], R]") -> "Callable[Concatenate[Consumer, P], R]":
    """Make a call between two looks of a poll in another thread, which lets it in."""

    @functools.wraps(method)
    def call(self: "Consumer", /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self._turn.acquire(blocking=False):
            me = threading.get_ident()
            self._waiting.add(me)
            try:
                if not self._turn.acquire(timeout=OTHERS_SECONDS):
                    raise _failed(KafkaError._TIMED_OUT, "another thread uses the consumer")
            finally:
                self._waiting.discard(me)
        try:
            return method(self, *args, **kwargs)
        finally:
            try:
                if self._closes and not self._is_telling:
                    self.close()
            finally:
                self._turn.release()

    return call


class Consumer:
    """Reads messages. Rebalances, commits and callbacks happen in `poll`, `consume` and `close`."""

    _client: ClientOf | None = None  # as of a subclass whose constructor does not call this one

    def __init__(self, *config: Any, **keywords: Any) -> None:
        given = settings.read(settings.CONSUMER, config, keywords)
        if "group" not in given.passed:
            raise ValueError("Failed to create consumer: group.id must be set")
        own = given.own
        self._settings: Any = given.passed
        self._auto_commit = given.flag("enable.auto.commit", True)
        self._auto_store = given.flag("enable.auto.offset.store", True)
        self._tells_ends = given.flag("enable.partition.eof", False)
        self._interval = given.number("auto.commit.interval.ms", 5_000) / 1000 or math.inf
        self._on_commit: Callable[[KafkaError | None, list[TopicPartition]], object] | None = own.get(
            "on_commit"
        ) or own.get("offset_commit_cb")
        self._error_cb: Callable[[KafkaError], object] | None = own.get("error_cb")
        self._statistics = Statistics("consumer", own.get("stats_cb"), given.number("statistics.interval.ms", 0))
        self._log: logging.Logger = own.get("logger") or log
        self._client = ClientOf(self)
        self._consumer: msgtx.Consumer[bytes, bytes] | None = None
        self._topics: list[str] = []  # that are subscribed to
        self._subscribes = False  # with the next poll
        self._leaves = False  # likewise
        self._told: dict[str, Rebalance | None] = {}
        # With the strategies range and roundrobin, a rebalance takes all partitions and gives all of the new assignment.
        self._is_eager = given.passed["assignment"] != "cooperative-sticky"
        self._given: list[msgtx.TopicPartition] = []  # of which the program was told
        self._is_due = False  # it is told next what it keeps
        self._each: Iterator[msgtx.Record[bytes, bytes]] = iter(())  # records that the last look has found
        self._is_telling = False  # a callback runs
        self._closes = False  # that callback has closed the consumer
        self._torn = False  # an exception came in the middle of a poll
        self._turn = threading.RLock()  # of the thread that uses the consumer below
        self._waiting: set[int] = set()  # threads that wait for their turn
        self._next_commit = time.monotonic() + self._interval
        self._next_look = self._next_serve = 0.0
        self._positions: dict[msgtx.TopicPartition, int] = {}  # behind what was returned
        self._begins: dict[msgtx.TopicPartition, int] = {}  # where a partition was sought to, until it is read
        self._stored: dict[msgtx.TopicPartition, int] = {}  # to be committed
        self._committed: dict[msgtx.TopicPartition, int | None] = {}  # None: it is asked for when it counts
        self._handed: dict[msgtx.TopicPartition, int] = {}  # to be committed in the background, which may fail
        self._settled: dict[msgtx.TopicPartition, int] = {}  # that a transaction holds
        self._is_open = False  # messages of a partition that was taken away are in no commit
        self._ends_told: dict[msgtx.TopicPartition, int] = {}
        self._paused: set[msgtx.TopicPartition] = set()  # also of partitions that are not assigned now, as there
        self._missing: set[str] = set()  # topics whose absence was told
        self._events: deque[Callable[[], object]] = deque()  # callbacks that are due
        self._found: deque[Message] = deque()  # errors and ends, for the next poll

    # ── the assignment ──

    @_in_turn
    def subscribe(
        self,
        topics: list[str],
        on_assign: Rebalance | None = None,
        on_revoke: Rebalance | None = None,
        on_lost: Rebalance | None = None,
    ) -> None:
        """Read these topics as a member of the group; a name that begins with `^` is a pattern. Joins in the next poll."""
        self._require_open()
        if not isinstance(topics, list):
            raise TypeError("expected list of topic unicode strings")
        for name, callback in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{name} expects a callable")
        names = [str(name) for name in topics]
        if not names or not all(names):
            raise _failed(KafkaError._INVALID_ARG, "Failed to set subscription: Local: Invalid argument or configuration")
        self._leave()
        if self._consumer is not None and not self._topics:
            self._end()  # it was assigned by hand
        self._topics, self._subscribes, self._missing = names, True, set()
        self._told = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost or on_revoke}

    def unsubscribe(self) -> None:
        """Leave the group, with the next poll."""
        self._require_open()
        self._leaves, self._subscribes, self._next_serve = bool(self._topics), False, 0.0

    def _leave(self) -> None:
        if self._leaves:
            try:
                self._end()
            finally:
                self._topics, self._leaves, self._each = [], False, iter(())
                self._found.clear()

    def _join(self) -> None:
        """Subscribe, as was asked for. Topics that are not there yet are waited for, and told of once."""
        known = set(self._connected().topics.list())
        plain = [name for name in self._topics if not name.startswith("^")]
        missing = [name for name in plain if name not in known]
        for name in missing:
            if name not in self._missing:
                self._missing.add(name)
                error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"Subscribed topic not available: {name}")
                self._found.append(_failure(error, name))
        by_pattern = len(plain) < len(self._topics) or bool(missing)
        hooks: Any = {
            "on_assign": self._assigned,
            "on_revoke": self._revoked,
            "on_lost": self._lost,
        }
        if by_pattern:
            self._inner().subscribe(pattern="|".join(map(_pattern, self._topics)), **hooks)
        else:
            self._inner().subscribe(plain, **hooks)
        self._subscribes = False

    def _assigned(self, partitions: list[msgtx.TopicPartition]) -> None:
        if self._is_eager:
            self._give(self._given)
            held = self._assignment()
            self._get(held, kept=[each for each in held if each not in partitions])
        else:
            self._get(partitions, kept=[])

    def _revoked(self, partitions: list[msgtx.TopicPartition]) -> None:
        if self._is_eager:
            self._is_due = bool(self._given) or self._is_due
            self._give(self._given)
        else:
            self._give(partitions)
        self._part_with(partitions)

    def _lost(self, partitions: list[msgtx.TopicPartition]) -> None:
        self._call("lost", partitions)
        self._given = [each for each in self._given if each not in partitions]
        self._part_with(partitions)

    def _part_with(self, partitions: list[msgtx.TopicPartition]) -> None:
        kept = (self._committed, self._handed, self._settled)
        for each in partitions:
            behind = self._positions.get(each)
            self._is_open |= behind is not None and all(at.get(each) != behind for at in kept)
        self._forget(partitions)

    def _get(self, partitions: list[msgtx.TopicPartition], *, kept: list[msgtx.TopicPartition]) -> None:
        """Tell the program of its partitions. If it listens, it reads all from the committed offsets, as there."""
        if self._closes:
            return
        if self._told.get("assign") or self._told.get("revoke"):
            for each in kept:
                self._forget([each])
                self._go_to(each, self._committed_or_reset(each))
        self._is_due = False
        self._inner().pause(self._paused.intersection(partitions))
        self._given = partitions
        self._call("assign", partitions)

    def _give(self, partitions: list[msgtx.TopicPartition]) -> None:
        if partitions:
            self._given = []
            try:
                self._call("revoke", partitions)
            finally:
                self._commit_all_of(partitions)

    def _commit_all_of(self, partitions: Iterable[msgtx.TopicPartition], *, wait: bool = False) -> None:
        if self._auto_commit:
            stored = self._stored.copy()
            self._commit_stored({each: stored[each] for each in partitions if each in stored}, wait=wait)

    def _call(self, event: str, partitions: list[msgtx.TopicPartition]) -> None:
        if (callback := self._told.get(event)) is not None:
            with self._telling():
                callback(self, [TopicPartition(*each) for each in partitions])

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Run a callback. If it closes the consumer, the call that runs it does so at its end."""
        before, self._is_telling = self._is_telling, True
        try:
            yield
        finally:
            self._is_telling = before

    def _tell_events(self) -> None:
        with self._telling():
            while self._events:
                self._events.popleft()()

    def _forget(self, partitions: Iterable[msgtx.TopicPartition]) -> None:
        for each in partitions:
            for kept in (
                self._positions,
                self._begins,
                self._stored,
                self._committed,
                self._handed,
                self._settled,
                self._ends_told,
            ):
                kept.pop(each, None)

    @_in_turn
    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read exactly these partitions, from their offsets if they have one. In `on_assign`: begin there."""
        self._require_open()
        self._leave()
        places = _places(partitions)
        with translated():
            if self._topics:
                moved = {place for place, each in zip(places, partitions, strict=True) if each.offset not in NO_OFFSETS}
                self._put_down(moved.intersection(self._assignment()))
            else:
                self._put_down(self._assignment())
                self._inner().assign([])  # each begins anew
                self._inner().assign(places)
            self._inner().pause(self._paused.intersection(self._assignment()))
            self._begin_at(partitions)

    @_in_turn
    def unassign(self) -> None:
        """Read nothing. In `on_revoke` it is not needed."""
        self._require_open()
        if self._consumer is not None and not self._topics:
            with translated():
                self._put_down(self._assignment())
                self._consumer.assign([])

    @_in_turn
    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions, too."""
        self._require_open()
        self._leave()
        places = _places(partitions)
        with translated():
            inner = self._inner()
            if not self._topics:
                held = inner.assignment()
                for each in places:
                    if each in held:
                        told = f"{each.topic} [{each.partition}] is already part of the current assignment"
                        raise _failed(KafkaError._CONFLICT, told)
                inner.assign([*held, *places])
                inner.pause(self._paused.intersection(places))
            self._begin_at(partitions)

    @_in_turn
    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Do not read these partitions any more."""
        self._require_open()
        places = _places(partitions)
        held = self._assignment()
        if not held:
            raise _failed(KafkaError._INVALID_ARG, "Can't subtract from empty assignment")
        for each in places:
            if each not in held:
                raise _failed(KafkaError._INVALID_ARG, f"{each.topic} [{each.partition}] is not part of the assignment")
        if not self._topics:
            with translated():
                self._put_down(places)
                self._inner().assign([each for each in held if each not in places])

    def _put_down(self, partitions: Collection[msgtx.TopicPartition]) -> None:
        """Forget the stored offsets of these partitions, as there: a commit that is automatic is made before."""
        self._commit_all_of(partitions, wait=True)
        known = {each: self._committed[each] for each in partitions if each in self._committed}
        self._forget(partitions)
        self._committed.update(known)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read."""
        self._require_open()
        return [self._kafka_position(each) for each in self._assignment()]

    def _kafka_position(self, place: msgtx.TopicPartition) -> TopicPartition:
        return TopicPartition(*place, self._positions.get(place, OFFSET_INVALID))

    def _assignment(self) -> list[msgtx.TopicPartition]:
        return [] if self._consumer is None else sorted(self._consumer.assignment())

    def _begin_at(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            place = msgtx.TopicPartition(each.topic, each.partition)
            if place not in self._inner().assignment():
                continue
            self._go_to(place, each.offset)
            if each.offset not in NO_OFFSETS:
                self._committed.setdefault(place, OFFSET_INVALID)  # as there: nobody has asked for it
                continue
            self._committed.pop(place, None)
            if not self._topics:
                with contextlib.suppress(errors.MsgtxError):  # the next poll raises it
                    self._begins[place] = self._inner().position(place)  # so that `latest` is the end of now

    def _go_to(self, place: msgtx.TopicPartition, offset: int) -> None:
        inner = self._inner()
        self._ends_told.pop(place, None)
        if offset == OFFSET_END:
            offset = inner.end_offsets([place])[place]  # the end of now, not of the next poll
        elif offset <= OFFSET_TAIL:
            start, end = inner.beginning_offsets([place])[place], inner.end_offsets([place])[place]
            offset = max(start, end + offset - OFFSET_TAIL)
        if offset in NO_OFFSETS:
            return
        self._positions.pop(place, None)
        self._begins[place] = offset
        if offset == OFFSET_BEGINNING:
            inner.seek_to_beginning([place])
        else:
            inner.seek(place, offset)

    def _committed_or_reset(self, place: msgtx.TopicPartition) -> int:
        at = self._inner().committed([place])[place]
        return self._reset() if at is None else at.offset

    def _reset(self) -> int:
        """Return where a new group begins."""
        earliest = self._settings.get("auto_offset_reset") in {"earliest", "smallest", "beginning"}
        return OFFSET_BEGINNING if earliest else OFFSET_END

    # ── reading ──

    def poll(self, timeout: float | None = -1) -> Message | None:
        """Return the next message, or None when `timeout` seconds are over. A message with an `error()` is none."""
        if not (self._found or self._torn or self._waiting) and time.monotonic() < self._next_serve:
            try:
                with self._turn:
                    record = next(self._each, None)
                    if record is not None:
                        return self._messages([record])[0]
            except errors.MsgtxError:  # the next look raises it again
                self._torn = True
            except BaseException:
                self._torn = True
                raise
        self._require_open()
        found = self._read(1, deadline_of(timeout))
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message]:
        """Return messages: as soon as there are so many, or when time is over."""
        if not 0 <= num_messages <= MOST_MESSAGES:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        self._require_open()
        deadline = deadline_of(timeout)
        found: list[Message] = []
        try:
            while len(found) < num_messages:
                found += self._read(num_messages - len(found), deadline)
                if seconds_left(deadline) <= 0 or self._client is None:
                    break
        except BaseException:
            self._unread(found)
            raise
        return found

    @_in_turn
    def _unread(self, messages: Iterable[Message | None]) -> None:
        """Have the next poll return these messages, which the program did not get."""
        self._each = iter(())
        for message in reversed([each for each in messages if each is not None]):
            if message.error() is not None:
                self._found.appendleft(message)
                continue
            place, behind = _behind(message)
            if place in self._positions:  # it is still assigned
                self._positions[place] = behind - 1
                if self._auto_store:
                    self._stored[place] = behind - 1
                with contextlib.suppress(errors.MsgtxError):
                    self._inner().seek(place, behind - 1)

    def _read(self, most: int, deadline: float) -> list[Message]:
        while True:
            if self._waiting:
                time.sleep(TURN_SECONDS)
            found, pause = self._step(most, deadline)
            if found or pause is None:
                return found
            if pause:
                time.sleep(pause)

    @_in_turn
    def _step(self, most: int, deadline: float) -> tuple[list[Message], float | None]:
        """Look once. Return messages, and how long to wait until the next look; None: time is over, or it is closed."""
        if self._client is None:  # what `consume` has found until now is for the program nevertheless
            return [], None
        self._leave()
        self._serve()
        if self._closes:
            return [], None
        if self._found:
            return [self._found.popleft()], None
        left = seconds_left(deadline)
        if self._consumer is None and not self._subscribes:
            return [], None if left <= 0 else min(left, LOOK_SECONDS)
        if messages := self._look(most, left):
            return messages, None
        if left <= 0 and not self._found:
            self._serve()
            return [], None
        return [], 0

    def _look(self, most: int, left: float) -> list[Message]:
        """Return messages; none at the latest when something else may be due. Errors are told as the original tells them."""
        try:
            if self._subscribes:
                self._join()
            inner = self._inner()
            self._mend()
            if not inner.assignment() and not self._topics:
                time.sleep(min(left, LOOK_SECONDS))
                return []
            if self._tells_ends:
                found = self._take(inner, most, 0)
                if found or self._look_for_ends():
                    return found
            return self._take(inner, most, min(left, LOOK_SECONDS))
        except errors.DatabaseUnavailable as error:
            self._tell(as_kafka(error))
        except errors.MsgtxError as error:
            # It is raised only where `auto.offset.reset` asks for an error.
            code = KafkaError._AUTO_OFFSET_RESET if isinstance(error, errors.OffsetOutOfRange) else None
            self._found.append(_failure(as_kafka(error, code), error.topic, error.partition))
        except BaseException:
            self._torn = True
            raise
        return []

    def _take(self, inner: "msgtx.Consumer[bytes, bytes]", most: int, timeout: float) -> list[Message]:
        """Wait for records. Of several that are there, `poll` takes one after the other, without another look."""
        look = inner.begin(timeout, most if most > 1 else None)
        is_there = look.wait()
        if self._is_due:
            self._get(self._assignment(), kept=self._assignment())
        if most > 1:
            found = look.take() if is_there else []
        else:
            self._each = look.each() if is_there else iter(())
            found = [record for record in (next(self._each, None),) if record is not None]
        return self._messages(found) if found else []

    def _mend(self) -> None:
        """Go on behind what was returned, after an exception in the middle of a poll, such as Ctrl-C."""
        if self._torn and self._consumer is not None:
            self._each = iter(())
            self._consumer.rewind()
            for place in self._consumer.assignment():
                if place in self._positions:
                    self._consumer.seek(place, self._positions[place])
                elif place in self._begins:
                    self._go_to(place, self._begins[place])
            self._torn = False

    def _messages(self, records: "list[msgtx.Record[bytes, bytes]]") -> list[Message]:
        found, last = [], records[0]
        for record in records:
            if record.partition != last.partition or record.topic != last.topic:
                self._went_past(last)
            last = record
            headers: Any = [*record.headers] if record.headers else None
            stamp = TIMESTAMP_CREATE_TIME, record.timestamp
            found.append(
                Message(record.topic, record.partition, record.offset, record.key, record.value, headers, None, stamp)
            )
        self._went_past(last)
        self._statistics.messages += len(found)
        return found

    def _went_past(self, record: "msgtx.Record[bytes, bytes]") -> None:
        place, behind = msgtx.TopicPartition(record.topic, record.partition), record.offset + 1
        self._positions[place] = behind
        if self._auto_store:
            self._stored[place] = behind

    def _look_for_ends(self) -> bool:
        """Tell of partitions that are read to their end. Return whether there is one."""
        inner = self._inner()
        now = time.monotonic()
        read = (each for each in inner.assignment() if each not in self._paused)
        places = [each for each in read if self._ends_told.get(each, -1) != self._positions.get(each, 0)]
        if not places or now < self._next_look:
            return False
        ends = inner.end_offsets(places)
        for place in sorted(places):
            if inner.position(place) >= ends[place]:
                self._ends_told[place] = self._positions.get(place, 0)
                error = KafkaError(KafkaError._PARTITION_EOF)
                self._found.append(Message(*place, ends[place], None, None, None, error))
        if not self._found:
            self._next_look = now + LOOK_SECONDS
        return bool(self._found)

    def _serve(self) -> None:
        """Call the callbacks that are due, and commit if it is time."""
        self._tell_events()
        with self._telling():
            self._statistics.serve()
        self._next_serve = time.monotonic() + SERVE_SECONDS
        if self._auto_commit and time.monotonic() >= self._next_commit:
            self._next_commit = time.monotonic() + self._interval
            with contextlib.suppress(errors.MsgtxError):  # then the next commit is of them
                self._commit_due()

    def _commit_due(self) -> None:
        due = self._due()
        # What nothing new followed is committed once more and awaited: in the background it may have failed.
        is_new = any(self._handed.get(each) != at for each, at in due.items())
        if is_new or self._inner().failing is None:
            self._commit_stored(due, wait=not is_new)

    def _tell(self, error: KafkaError) -> None:
        if self._error_cb is None:
            self._log.warning("%s", error.str())
        else:
            self._events.append(lambda: self._error_cb and self._error_cb(error))
        time.sleep(REFUSED_SECONDS)

    # ── offsets ──

    def _due(self) -> dict[msgtx.TopicPartition, int]:
        """Return the stored offsets that are ahead of the committed ones: as there, a seek takes no commit back."""
        stored = self._stored.copy()  # another thread may store offsets
        unknown = [each for each in stored if self._committed.get(each, OFFSET_INVALID) is None]
        found = self._inner().committed(unknown, require_stable=False) if unknown else {}
        self._committed.update({each: OFFSET_INVALID if at is None else at.offset for each, at in found.items()})
        last = {each: OFFSET_INVALID if at is None else at for each, at in self._committed.items()}
        return {each: at for each, at in stored.items() if at > last.get(each, OFFSET_INVALID)}

    @_in_turn
    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commit the offset behind a message, these offsets, or the stored ones. Return them unless `asynchronous`."""
        return self._commit(message, offsets, asynchronous=asynchronous, wait=not asynchronous)

    def _commit(
        self, message: Message | None, offsets: list[TopicPartition] | None, *, asynchronous: bool, wait: bool
    ) -> list[TopicPartition] | None:
        self._require_open()
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        failure = None
        given: dict[msgtx.TopicPartition, msgtx.OffsetAndMetadata]
        if message is not None:
            place, behind = _behind(message)
            given = {place: msgtx.OffsetAndMetadata(behind)}
        elif offsets is not None:
            given = {
                place: msgtx.OffsetAndMetadata(each.offset, each.metadata or "")
                for place, each in zip(_places(offsets), offsets, strict=True)
                if each.offset >= 0
            }
        else:
            given = {}
            try:
                given = {each: msgtx.OffsetAndMetadata(at) for each, at in self._due().items()}
            except (errors.MsgtxError, TimeoutError) as error:
                failure = as_kafka(error)
        known: dict[msgtx.TopicPartition, msgtx.OffsetAndMetadata | None] = {**given}
        if message is None and offsets is None:
            known = {each: given.get(each) for each in self._assignment()} | known
        told = [_kafka_place(each, at) for each, at in known.items()]
        is_told = self._on_commit is not None and asynchronous and bool(given or failure)
        if failure is None and not given:
            failure = KafkaError(KafkaError._NO_OFFSET, "Commit failed: Local: No offset stored")
        elif failure is None:
            try:
                self._mend()
                is_known = wait or self._on_commit is not None
                self._inner().commit(given, wait=is_known)
                (self._committed if is_known else self._handed).update({each: at.offset for each, at in given.items()})
            except (errors.MsgtxError, TimeoutError) as error:
                failure = as_kafka(error)
        if is_told:
            self._events.append(lambda: self._on_commit and self._on_commit(failure, told))
        if asynchronous:
            return None
        if failure is not None:
            raise KafkaException(failure)
        return told

    def _commit_stored(self, due: dict[msgtx.TopicPartition, int], *, wait: bool = False) -> None:
        if due:
            self._commit(None, [TopicPartition(*each, at) for each, at in due.items()], asynchronous=True, wait=wait)

    def store_offsets(self, message: Message | None = None, offsets: list[TopicPartition] | None = None) -> None:
        """Store the offsets that the next commit writes; needs `enable.auto.offset.store=false`."""
        self._require_open()
        if message is None and offsets is None:
            raise ValueError("expected either message or offsets")
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if self._auto_store:
            raise _failed(KafkaError._INVALID_ARG, "StoreOffsets failed: Local: Invalid argument or configuration")
        if message is not None:
            place, behind = _behind(message)
            offsets = [TopicPartition(*place, behind)]
        given = offsets or []
        held = self._assignment()
        for place, each in zip(_places(given), given, strict=True):
            if place not in held:
                raise _failed(KafkaError._STATE, "StoreOffsets failed: Local: Erroneous state")
            self._stored[place] = each.offset

    def committed(self, partitions: list[TopicPartition], timeout: float | None = -1) -> list[TopicPartition]:
        """Return the group's committed offsets; −1001 where there is none."""
        places = _places(partitions)
        with translated():
            found = self._inner().committed(places, timeout=none_or(timeout))
        return [_kafka_place(each, found.get(each)) for each in places]

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the offsets behind the last messages; −1001 where none was returned."""
        self._require_open()
        return [self._kafka_position(each) for each in _places(partitions)]

    @_in_turn
    def seek(self, partition: TopicPartition) -> None:
        """Go on at `partition.offset`."""
        self._require_open()
        place = _places([partition])[0]
        if place not in self._assignment():
            raise _failed(KafkaError._UNKNOWN_PARTITION, f"Failed to seek to offset {partition.offset}: it is not assigned")
        with translated():
            offset = partition.offset
            if offset == OFFSET_INVALID:  # what `committed` returns where there is none: as of a new group
                offset = self._reset()
            elif offset == OFFSET_STORED:
                offset = self._committed_or_reset(place)
            self._go_to(place, offset)
            self._committed.setdefault(place, None)

    @_in_turn
    def pause(self, partitions: list[TopicPartition]) -> None:
        """Return no messages of these partitions until `resume`."""
        self._require_open()
        with translated():
            self._inner().pause(self._held(partitions))
            self._paused.update(self._held(partitions))

    @_in_turn
    def resume(self, partitions: list[TopicPartition]) -> None:
        """Return messages of these partitions again."""
        self._require_open()
        with translated():
            self._inner().resume(self._held(partitions))
            self._paused.difference_update(_places(partitions))

    def _held(self, partitions: list[TopicPartition]) -> list[msgtx.TopicPartition]:
        held = self._assignment()
        return [each for each in _places(partitions) if each in held]

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = -1, cached: bool = False
    ) -> tuple[int, int]:
        """Return the first offset and the end of a partition."""
        place = _places([partition])[0]
        with translated():
            inner = self._inner()
            return inner.beginning_offsets([place])[place], inner.end_offsets([place])[place]

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float | None = -1) -> list[TopicPartition]:
        """Return the first offset at or after each time, which stands in `offset`; −1 where there is none."""
        places = _places(partitions)
        with translated():
            found = self._inner().offsets_for_times(
                {place: each.offset for place, each in zip(places, partitions, strict=True)}
            )
        return [TopicPartition(*each, OFFSET_END if (at := found[each]) is None else at.offset) for each in places]

    # ── the rest ──

    @_in_turn
    def consumer_group_metadata(self) -> GroupMember:
        """Return the member, for `send_offsets_to_transaction`."""
        self._require_open()
        with translated():
            inner = self._inner()
            try:
                return GroupMember(inner.group_metadata(), self._settled.update)
            except errors.NotAssigned:  # once: the program aborts its transaction
                self._torn = True
                self._mend()
                was_open, self._is_open = self._is_open, False
                if was_open:
                    raise
                return GroupMember(inner.group_metadata(), self._settled.update)

    def memberid(self) -> str | None:
        """Return the member's id; None before it has joined."""
        self._require_open()
        if self._consumer is None or not self._topics or self._subscribes:
            return None
        with translated():
            return self._consumer.group_metadata().member_id

    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """Return the topics, and the database as the only broker."""
        with translated():
            return metadata.cluster(self._connected(), topic)

    def cluster_id(self, timeout: float | None = -1) -> str:
        """Return the id of the installation."""
        with translated():
            return metadata.cluster_id(self._connected())

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Do nothing: user and password are part of the database's URL."""
        self._require_open()

    @_in_turn
    def close(self) -> None:
        """Commit stored offsets if that is automatic, leave the group, and end."""
        if self._client is None:
            return
        if self._is_telling:  # a callback has called this: the call that called it ends the consumer
            self._closes = True
            return
        try:
            self._end()
        finally:
            self._closes = False
            self._client.release()
            self._client = None

    def __enter__(self) -> Self:
        """Return the consumer. The end of the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the consumer."""
        self.close()

    def _end(self) -> None:
        """Commit, call `on_revoke`, and close the consumer below."""
        if self._consumer is None:
            return
        held = self._assignment()
        try:
            with translated():
                self._mend()
                given = self._given if self._is_eager else held  # of the others it was told that they are taken away
                if held and given and self._topics:
                    self._give(held)
                else:
                    self._commit_all_of(held)
            self._tell_events()
        finally:
            consumer, self._consumer = self._consumer, None
            self._each, self._given, self._is_due = iter(()), [], False
            self._forget(held)
            with translated():
                consumer.close()

    def _require_open(self) -> None:
        if self._client is None:
            raise RuntimeError("Consumer closed")

    def _connected(self) -> msgtx.Client:
        self._require_open()
        assert self._client is not None
        return self._client.get()

    def _inner(self) -> "msgtx.Consumer[bytes, bytes]":
        self._require_open()
        if self._consumer is None:
            self._consumer = self._connected().consumer(**self._settings)
        return self._consumer


class ShareConsumer:
    """The original's consumer of share groups, which the facade does not have."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise _failed(KafkaError._UNSUPPORTED_FEATURE, "use msgtx.connect().share_consumer: the facade has no ShareConsumer")


def _pattern(name: str) -> str:
    """Return a name or a pattern of librdkafka's, which matches at the beginning, as one that matches the whole name."""
    return f"(?:{name}).*" if name.startswith("^") else re.escape(name)


def _places(partitions: Any) -> list[msgtx.TopicPartition]:
    if not isinstance(partitions, list):
        raise TypeError("requires list of TopicPartition")
    for each in partitions:
        if not isinstance(each, TopicPartition):
            raise TypeError("expected cimpl.TopicPartition")
    return [msgtx.TopicPartition(each.topic, each.partition) for each in partitions]


def _kafka_place(place: msgtx.TopicPartition, at: msgtx.OffsetAndMetadata | None) -> TopicPartition:
    if at is None:
        return TopicPartition(*place, OFFSET_INVALID)
    return TopicPartition(*place, at.offset, at.metadata) if at.metadata else TopicPartition(*place, at.offset)


def _behind(given: object) -> tuple[msgtx.TopicPartition, int]:
    if not isinstance(given, Message):
        raise TypeError("expected confluent_kafka.cimpl.Message")
    message: Any = given
    if message.error() is not None:
        raise _failed(KafkaError._INVALID_ARG, "the message has an error: nothing is committed")
    return msgtx.TopicPartition(message.topic(), message.partition()), message.offset() + 1


def _failure(error: KafkaError, topic: str | None = None, partition: int | None = None) -> Message:
    return Message(topic or "", partition or 0, OFFSET_INVALID, None, error.str().encode(), None, error)


def _failed(code: int, sentence: str) -> KafkaException:
    return KafkaException(KafkaError(code, sentence))
