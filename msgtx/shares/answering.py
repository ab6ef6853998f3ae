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

from msgtx import errors
from msgtx.config import ShareConsumerConfig
from msgtx.database.connection import until
from msgtx.errors import MsgtxError
from msgtx.receiving.integrity import Integrity
from msgtx.session.answers import Answers, Transactions, is_open, transactions_here
from msgtx.shares.calls import Calls
from msgtx.shares.holdings import ACCEPTED, Answer, Held, Holdings, Key, without
from msgtx.shares.member import ShareMember
from msgtx.shares.polls import GroupPolls
from msgtx.store.shares.answers import OffsetRange, Refused, acknowledge_records
from msgtx.store.shares.shares import ensure_dead_letters
from msgtx.types import Acknowledgement, ShareRecord

log = logging.getLogger("msgtx.consumer")
PLAIN_RELEASE: Final[Answer] = (Acknowledgement.RELEASE, None, 0)


@dataclass(frozen=True, slots=True)
class Commit:
    """Answers that are sent in one call. `member` None: there is none any more."""

    member: int | None
    call: int
    answers: dict[Key, Answer]


class Answering:
    """The answers of one share consumer."""

    def __init__(
        self,
        config: ShareConsumerConfig,
        calls: Calls,
        *,
        holdings: Holdings,
        integrity: Integrity,
        member: ShareMember,
        polls: GroupPolls,
    ) -> None:
        self._config = config
        self._calls = calls
        self._holdings = holdings
        self._integrity = integrity
        self._member = member
        self._polls = polls
        self._implicit = config.acknowledgement_mode == "implicit"
        self.sent: Commit | None = None
        self.of_single_records = False  # the last acquisition asked for one
        self._dead_letters: str | None = None  # the topic of them, once it is there
        self._by_caller = False  # `commit` was called, or a transaction or session was given answers
        self._handed_out_in: Transactions = ()  # what was handed out last
        self._warned = False

    def handed_out(self) -> None:
        """Note that records are handed out in this thread or task."""
        self._handed_out_in = transactions_here()

    # ── before a poll ──

    def accept(self) -> bool:
        """In implicit mode, accept the records handed out. Return whether there is a commit to send."""
        self.settle_all()
        if transactions_here() and not self._was_left_behind():
            return False
        return self._note(self._holdings.given)

    def _was_left_behind(self) -> bool:
        """Return whether the records handed out within transactions were left out: these transactions ended without them.

        A caller that gives answers to transactions may have polled for the next one: then the records belong to it.
        """
        if not self._handed_out_in or any(map(is_open, self._handed_out_in)) or not self._holdings.given():
            return False
        if self._by_caller and not self._warned:
            self._warned = True  # it is said once
            log.warning(
                "share group %r: what a poll within a transaction handed out is not accepted, since the transaction ended"
                " without it: call send_acknowledgements in the next one, or the records are delivered again when their"
                " locks expire",
                self._config.group,
            )
        return not self._by_caller

    def look_for_commits(self) -> None:
        """In explicit mode, warn a caller that answers and never commits."""
        if self._holdings.has_answers and not self._by_caller and not transactions_here():
            self._by_caller = True  # it is said once
            log.warning(
                "share group %r: acknowledge() was called before this poll, and commit() was not: in explicit mode a poll"
                " commits nothing, and the records are delivered again when their locks expire",
                self._config.group,
            )

    # ── a commit ──

    def commit(self) -> None:
        """Commit the answers given so far."""
        self._by_caller = True
        self.settle_all()
        if self._implicit:
            self.give_back()
        if self._note(self._holdings.given):
            self.settle()

    def commit_last(self) -> None:
        """Commit what the caller has answered for, at the end."""
        self.settle_all()
        if self._note(self._holdings.explicit):
            self.settle()

    def _note(self, given: Callable[[], dict[Key, Answer]]) -> bool:
        """Note a commit of these answers, in one step: an undo in another thread comes before it, or leaves it alone."""
        with self._holdings.lock:
            answers = given()
            if answers:
                self.sent = Commit(self._member.number, self._calls.number(), answers)
        return bool(answers)

    def settle(self) -> None:
        """Send the last commit until it is answered, or time is over: then again, before another one."""
        commit = self.sent
        if commit is None:
            return
        refused: Sequence[Refused] | None = None
        if commit.member is not None:
            columns = self._holdings.columns_of(commit.member, commit.answers)
            if columns.partition_ids:
                send = partial(
                    self._polls.acknowledge,
                    self._config.group,
                    commit.member,
                    commit.call,
                    columns,
                    is_whole=self._implicit or self.of_single_records,
                )
                with contextlib.suppress(errors.UnknownMember):
                    refused = self._calls.again(send)
        self.answered(commit.answers, refused)

    def answered(self, answers: dict[Key, Answer], refused: Sequence[Refused] | None) -> None:
        """Note the answer to the last commit; see `Holdings.answered`."""
        with self._integrity.steps():
            self.sent = None
            self._holdings.answered(answers, refused)

    def settle_all(self) -> None:
        """Do what has to be done on connections of its own before answers are given to anybody."""
        self.settle()
        if self._dead_letters is None and self._holdings.has_rejects:
            self.dead_letter_topic()  # else they would wait for the next acquisition

    def dead_letter_topic(self) -> str:
        """Return the name of the group's topic of dead letters, which is made if there is none."""
        if self._dead_letters is None:
            self._member.join()  # the group is there then
            self._dead_letters = self._calls.answered(lambda connection: ensure_dead_letters(connection, self._config.group))
        return self._dead_letters

    def forget(self) -> None:
        """Forget the held records: the session has expired, so other members may acquire them."""
        self._member.gone()
        self._holdings.clear()
        self.sent = None

    # ── answers of a transaction or a session ──

    def take(self, *, release: bool) -> Answers | None:
        """Return the answers given so far, for a transaction or a session. `release`: what it does not commit, at once."""
        self._by_caller = True
        with self._integrity.steps(), self._holdings.lock:
            if self._implicit and self._holdings.rewound:
                raise errors.IllegalState(
                    f"share group {self._config.group!r}: what was handed out last is to be handed out again, after an"
                    " abort, a rollback or rewind(): poll before you commit it",
                    group=self._config.group,
                    reason="poll first",
                )
            given = self._holdings.to_take()
            if not given:
                return None
            number = self._member.number
            if number is None:
                self.forget()
                raise errors.InvalidRecordState(
                    f"share group {self._config.group!r}: the session of this member is over",
                    group=self._config.group,
                    reason="session over",
                )
            take_back = self._release if release else self._hold_again
            return self._holdings.take(given, member=number, call=self._calls.number(), take_back=take_back)

    def accepting(self, records: Iterable[ShareRecord]) -> Answers | None:
        """See `ShareConsumer.accepting`."""
        for key in [self._holdings.require(record) for record in records]:
            self._holdings.answer(key, ACCEPTED)
        return self.take(release=False)

    def _hold_again(self, answers: Answers) -> None:
        with self._integrity.steps():
            self._holdings.hold_again(answers)

    def _release(self, answers: Answers) -> None:
        """Release the records of an aborted transaction. Pending ones were released by the abort itself."""
        with self._integrity.steps():
            again = self._holdings.hold_again(answers)
        self._try_to_release(again)

    def have_pending(self, deadline: float) -> None:
        """Have open transactions store the answers that they were given: the records are others' when this member leaves."""
        for answers in self._holdings.open():
            if answers.hand_over is not None:
                answers.hand_over(max(0.0, deadline - time.monotonic()))

    # ── what is handed out again ──

    def undo(self) -> None:
        """Mark what is not committed as to be released. For any thread."""
        with self._integrity.steps(), self._holdings.lock:
            self._holdings.undo(but=() if self.sent is None else self.sent.answers)

    def give_back(self) -> None:
        """Release what is undone."""
        if undone := self._holdings.undone():
            self._calls.again(partial(self._release_if_held, undone))
            self._holdings.released(undone)

    def try_to_give_back(self) -> None:
        """Release what is undone, by one attempt: else the next poll does it, or the lock expires."""
        self._try_to_release(self._holdings.undone())

    def _try_to_release(self, held: dict[Key, Held]) -> None:
        seconds = self._config.request_timeout_ms / 1000
        if held:
            with contextlib.suppress(MsgtxError), until(time.monotonic() + seconds, silence=seconds):
                self._release_if_held(held)
                self._holdings.released(held)

    def _release_if_held(self, held: dict[Key, Held]) -> None:
        self.answer_if_held([each.range for each in held.values()], PLAIN_RELEASE)

    def answer_if_held(self, ranges: Sequence[OffsetRange], answer: Answer) -> list[OffsetRange]:
        """Answer for these ranges, those that this member holds; return them. For any thread."""
        held, number = list(ranges), self._member.number
        if number is None:
            return []
        with self._calls.engine.connection() as connection:
            for _ in range(2):
                columns = self._holdings.columns(number, [(each, answer) for each in held])
                refused = acknowledge_records(connection, columns, call_number=None) if held else []
                if not refused:
                    break
                held = without(held, [each for _, each in refused])
        return held
