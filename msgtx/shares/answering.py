"""What a share consumer's caller has answered, until the group has it: by a commit, an acquisition, or a transaction.

A commit is in one of three states. There is none (`sent` is None); it was sent, and its answer did not come (then it is sent
again, under the same number, before anything else); it was answered, which `Holdings` notes, and there is none again.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgtx import arguments, errors, units
from msgtx.config import ShareConsumerConfig
from msgtx.database.connection import until
from msgtx.errors import MsgtxError
from msgtx.receiving.calls import Calls
from msgtx.receiving.integrity import Integrity
from msgtx.receiving.sole_use import SoleUse
from msgtx.session.answers import Answers, Transactions, is_open, transactions_here
from msgtx.shares.holdings import ACCEPTED, Answer, Held, Holdings, Key, without
from msgtx.shares.member import ShareMember
from msgtx.shares.polls import GroupPolls
from msgtx.store.shares.answers import OffsetRange, Refused, acknowledge_records
from msgtx.store.shares.shares import ensure_dead_letters
from msgtx.types import Acknowledgement, ShareRecord
from msgtx.units import Duration

log = logging.getLogger("msgtx.consumer")
PLAIN_RELEASE: Final[Answer] = (Acknowledgement.RELEASE, None, 0)


@dataclass(frozen=True, slots=True)
class Commit:
    """Answers that are sent in one call. `member` None: there is none any more."""

    member: int | None
    call: int
    answers: dict[Key, Answer]


@dataclass(eq=False)
class Answering:
    """The answers of one share consumer."""

    config: ShareConsumerConfig
    calls: Calls
    holdings: Holdings
    integrity: Integrity
    member: ShareMember
    polls: GroupPolls
    sole_use: SoleUse
    sent: Commit | None = None
    of_single_records: bool = False  # the last acquisition asked for one
    _dead_letters: str | None = None  # the topic of them, once it is there
    _by_caller: bool = False  # `commit` was called, or a transaction or session was given answers
    _handed_out_in: Transactions = ()  # what was handed out last
    _warned: bool = False

    def handed_out(self) -> None:
        """Note that records are handed out in this thread or task."""
        self._handed_out_in = transactions_here()

    # ── before a poll ──

    def accept(self) -> bool:
        """In implicit mode, accept the records handed out. Return whether there is a commit to send."""
        self.settle_all()
        if transactions_here() and not self._was_left_behind():
            return False
        return self._note(self.holdings.given)

    def _was_left_behind(self) -> bool:
        """Return whether the records handed out within transactions were left out: these transactions ended without them.

        A caller that gives answers to transactions may have polled for the next one: then the records belong to it.
        """
        if not self._handed_out_in or any(map(is_open, self._handed_out_in)) or not self.holdings.given():
            return False
        if self._by_caller and not self._warned:
            self._warned = True  # it is said once
            log.warning(
                "share group %r: what a poll within a transaction handed out is not accepted, since the transaction ended"
                " without it: call send_acknowledgements in the next one, or the records are delivered again when their"
                " locks expire",
                self.config.group,
            )
        return not self._by_caller

    def look_for_commits(self) -> None:
        """In explicit mode, warn a caller that answers and never commits."""
        if self.holdings.has_answers and not self._by_caller and not transactions_here():
            self._by_caller = True  # it is said once
            log.warning(
                "share group %r: acknowledge() was called before this poll, and commit() was not: in explicit mode a poll"
                " commits nothing, and the records are delivered again when their locks expire",
                self.config.group,
            )

    # ── the caller's answers ──

    def acknowledge(
        self, record: ShareRecord, answer: Acknowledgement, reason: str | None, delay_ms: Duration | None
    ) -> None:
        """Note the answer for a record; see `ShareConsumer.acknowledge`."""
        self.sole_use.require_open()
        arguments.an_instance("record", record, ShareRecord, "a ShareRecord that was handed out")
        arguments.an_instance("answer", answer, Acknowledgement, "an Acknowledgement")
        reason = None if reason is None else arguments.an_instance("reason", reason, str, "a text")
        if self.holdings.implicit:
            raise errors.IllegalState(
                "this share consumer accepts what it has handed out: acknowledgement_mode is implicit",
                reason="acknowledgement_mode",
            )
        key = self.holdings.require(record)
        delay = None if delay_ms is None else units.milliseconds("delay_ms", delay_ms)
        if delay is not None and not (answer is Acknowledgement.RELEASE and 0 <= delay < 1 << 31):
            raise errors.InvalidRequest(
                f"delay_ms is for RELEASE, from 0 to 2147483647, not {delay_ms!r} for {answer.name}", name="delay_ms"
            )
        self.holdings.answer(key, (answer, reason, delay))

    # ── a commit ──

    def commit(self) -> None:
        """Commit the answers given so far."""
        self._by_caller = True
        self.settle_all()
        if self.holdings.implicit:
            self.give_back()
        if self._note(self.holdings.given):
            self.settle()

    def commit_last(self) -> None:
        """Commit what the caller has answered for, at the end."""
        self.settle_all()
        if self._note(self.holdings.explicit):
            self.settle()

    def _note(self, given: Callable[[], dict[Key, Answer]]) -> bool:
        """Note a commit of these answers, in one step: an undo in another thread comes before it, or leaves it alone."""
        with self.holdings.lock:
            answers = given()
            if answers:
                self.sent = Commit(self.member.number, next(self.holdings.call_numbers), answers)
        return bool(answers)

    def settle(self) -> None:
        """Send the last commit until it is answered, or time is over: then again, before another one."""
        commit = self.sent
        if commit is None:
            return
        refused: Sequence[Refused] | None = None
        if commit.member is not None:
            self.member.prove()
            columns = self.holdings.columns_of(commit.member, commit.answers)
            if columns.partition_ids:
                send = partial(
                    self.polls.acknowledge,
                    self.config.group,
                    commit.member,
                    commit.call,
                    columns,
                    is_whole=self.holdings.implicit or self.of_single_records,
                )
                with contextlib.suppress(errors.UnknownMember):
                    refused = self.calls.answered(send)
        self.answered(commit.answers, refused)

    def answered(self, answers: dict[Key, Answer], refused: Sequence[Refused] | None) -> None:
        """Note the answer to the last commit; see `Holdings.answered`."""
        with self.integrity.steps():
            self.sent = None
            self.holdings.answered(answers, refused)

    def ready(self) -> None:
        """Be ready to give answers away. Raise `IllegalState` if the consumer is closed, or was interrupted."""
        self.sole_use.require_open()
        self.integrity.require()
        self.settle_all()

    def settle_all(self) -> None:
        """Do what has to be done on connections of its own before answers are given to anybody."""
        self.settle()
        if self._dead_letters is None and self.holdings.has_rejects:
            self.dead_letter_topic()  # else they would wait for the next acquisition

    def dead_letter_topic(self) -> str:
        """Return the name of the group's topic of dead letters, which is made if there is none."""
        if self._dead_letters is None:
            self.member.join()  # the group is there then
            self._dead_letters = self.calls.asked(lambda connection: ensure_dead_letters(connection, self.config.group))
        return self._dead_letters

    def forget(self) -> None:
        """Forget the held records: the session has expired, so other members may acquire them."""
        self.member.gone()
        self.holdings.clear()
        self.sent = None

    # ── answers of a transaction or a session ──

    def take(self, *, release: bool) -> Answers | None:
        """Return the answers given so far, for a transaction or a session. `release`: what it does not commit, at once."""
        self._by_caller = True
        with self.integrity.steps(), self.holdings.lock:
            if self.holdings.implicit and self.holdings.rewound:
                raise errors.IllegalState(
                    f"share group {self.config.group!r}: what was handed out last is to be handed out again, after an"
                    " abort, a rollback or rewind(): poll before you commit it",
                    group=self.config.group,
                    reason="poll first",
                )
            given = self.holdings.to_take()
            if not given:
                return None
            number = self.member.number
            if number is None:
                self.forget()
                raise errors.InvalidRecordState(
                    f"share group {self.config.group!r}: the session of this member is over",
                    group=self.config.group,
                    reason="session over",
                )
            take_back = self._release if release else self._hold_again
            return self.holdings.take(given, member=number, call=next(self.holdings.call_numbers), take_back=take_back)

    def accepting(self, records: Iterable[ShareRecord]) -> Answers | None:
        """Return answers that accept these records (explicit mode), for a transaction or a session to commit.

        If it does not, they are held as before, unless others have them by then. Raise what `acknowledge` and `commit` do.
        """
        self.ready()
        for key in [self.holdings.require(record) for record in records]:
            self.holdings.answer(key, ACCEPTED)
        return self.take(release=False)

    def _hold_again(self, answers: Answers) -> None:
        with self.integrity.steps():
            self.holdings.hold_again(answers)

    def _release(self, answers: Answers) -> None:
        """Release the records of an aborted transaction. Pending ones were released by the abort itself."""
        with self.integrity.steps():
            again = self.holdings.hold_again(answers)
        self._try_to_release(again)

    def have_pending(self, deadline: float) -> None:
        """Have open transactions store the answers that they were given: the records are others' when this member leaves."""
        for answers in self.holdings.open():
            if answers.hand_over is not None:
                answers.hand_over(max(0.0, deadline - time.monotonic()))

    # ── what is handed out again ──

    def not_committed(self, *, release: bool) -> None:
        """Handle that a transaction or session did not commit: the records returned by then are to be returned again.

        `release`: in implicit mode at once. In explicit mode the caller may answer for them again before the next poll. For
        any thread.
        """
        if not self.sole_use.closed:
            self.undo()
            if release and self.holdings.implicit:
                self.try_to_give_back()

    def undo(self) -> None:
        """Mark what is not committed as to be released. For any thread."""
        with self.integrity.steps(), self.holdings.lock:
            self.holdings.undo(but=() if self.sent is None else self.sent.answers)

    def give_back(self) -> None:
        """Release what is undone."""
        if undone := self.holdings.undone():
            self.calls.answered(partial(self._release_if_held, undone))
            self.holdings.released(undone)

    def try_to_give_back(self) -> None:
        """Release what is undone, by one attempt: else the next poll does it, or the lock expires."""
        self._try_to_release(self.holdings.undone())

    def _try_to_release(self, held: dict[Key, Held]) -> None:
        seconds = self.config.request_timeout_ms / 1000
        if held:
            with contextlib.suppress(MsgtxError), until(time.monotonic() + seconds, silence=seconds):
                self._release_if_held(held)
                self.holdings.released(held)

    def _release_if_held(self, held: dict[Key, Held]) -> None:
        self.answer_if_held([each.range for each in held.values()], PLAIN_RELEASE)

    def renew(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Have the locks of these begin anew, those that this member holds; return them. For any thread."""
        return self.answer_if_held(ranges, (Acknowledgement.RENEW, None, None))

    def answer_if_held(self, ranges: Sequence[OffsetRange], answer: Answer) -> list[OffsetRange]:
        """Answer for these ranges, those that this member holds; return them. For any thread."""
        held, number = list(ranges), self.member.number
        if number is None:
            return []
        with self.calls.engine.connection() as connection:
            for _ in range(2):
                columns = self.holdings.columns(number, [(each, answer) for each in held])
                refused = acknowledge_records(connection, columns, call_number=None) if held else []
                if not refused:
                    break
                held = without(held, [each for _, each in refused])
        return held
