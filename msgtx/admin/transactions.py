"""Transactions as an administrator sees them."""

import builtins
import re
from collections.abc import Collection, Sequence
from typing import Final, TypedDict

from msgtx import arguments, errors
from msgtx.admin.blocking import blocking
from msgtx.admin.groups import known_states
from msgtx.admin.hanging import find_hanging
from msgtx.admin.showing import show
from msgtx.database.calls import clock
from msgtx.database.pool import Engine
from msgtx.rules.names import did_you_mean
from msgtx.rules.transaction import SORTS, State
from msgtx.store.append.append import epoch_ms
from msgtx.store.transactions.producers import fence_producer
from msgtx.store.transactions.transactions import (
    Decision,
    Listed,
    describe_transaction,
    end_transaction,
    list_transactions,
    transaction_outcome,
)
from msgtx.store.transactions.undecided import undecided_seals
from msgtx.types import (
    BlockingTransaction,
    HangingTransaction,
    Outcome,
    PreparedListing,
    PreparedTransaction,
    ProducerId,
    ShownTransaction,
    TransactionDescription,
    TransactionId,
    TransactionListing,
    TransactionsPage,
)

TRANSACTION_NAME: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
LIST_ATTEMPTS: Final = 5  # of a list, if the producer behind which to continue expires
LARGEST_PAGE: Final = 5_000  # partitions of one answer: 0.2 to 0.4 s; transactions of one page


class TransactionsAdmin:
    """`client.admin.transactions`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(
        self,
        states: Collection[str] | None = None,
        producer_ids: Collection[int] | None = None,
        longer_than_ms: int | None = None,
        pattern: str | None = None,
        *,
        prefix: str = "",
        sort: str = SORTS[0],
        after: int | None = None,
        most: int | None = None,
    ) -> list[TransactionListing]:
        """List producers with their state, by transactional id.

        `states` as Kafka names them; `longer_than_ms`: open for longer; `pattern`: a regular expression for the whole id;
        `prefix`, `sort`, `after`: as in `page`; `most`: None: all.
        """
        if longer_than_ms is not None:
            longer_than_ms = arguments.whole("longer_than_ms", longer_than_ms)
        try:
            expression = None if pattern is None else re.compile(arguments.text("pattern", pattern))
        except (re.error, RecursionError, OverflowError) as error:
            raise errors.InvalidRequest(f"pattern {arguments.shown(pattern)}: {error}", name="pattern") from error
        if most is not None:
            most = arguments.whole("most", most, least=1, most=arguments.LARGEST_INT4)
        asked, attempts = _asked(states, producer_ids, prefix, sort, after), LIST_ATTEMPTS
        found: builtins.list[TransactionListing] = []
        with self._engine.connection() as connection:
            now = epoch_ms(clock(connection))
            while most is None or len(found) < most:
                try:
                    rows, place = list_transactions(connection, **asked, most=LARGEST_PAGE)
                except errors.InvalidRequest:
                    # The producer behind which to continue has expired in between.
                    if asked["after"] == after or not attempts:
                        raise
                    attempts -= 1
                    found.clear()
                    asked["after"] = after
                    continue
                found += [
                    TransactionListing(row.transactional_id, row.producer_id, row.state)
                    for row in rows
                    if (expression is None or expression.fullmatch(row.transactional_id or "") is not None)
                    and (longer_than_ms is None or _open_longer(row, longer_than_ms, now))
                ]
                if place is None:
                    break
                asked["after"] = place
        return found[:most]

    def page(
        self,
        states: Collection[str] | None = None,
        producer_ids: Collection[int] | None = None,
        *,
        prefix: str = "",
        sort: str = SORTS[0],
        after: int | None = None,
        most: int = 50,
    ) -> TransactionsPage:
        """Return some of the transactions that `list` returns, in a time that does not grow with their number.

        `prefix`: how the transactional id begins; `sort`: `transactional_id` (those without one come last), `producer_id`,
        or one of them behind a `-` for the other direction; `after`: that of the page before. A page looks at 20,000
        producers at most: with a state that few have, it may hold fewer than `most`, and none, before the last one. Raise
        `InvalidRequest` if the producer `after` is gone. Of `Ongoing` and `Prepared` alone all producers are looked at (2 ms
        for 1,000).
        """
        most = arguments.whole("most", most, least=1, most=LARGEST_PAGE)
        asked = _asked(states, producer_ids, prefix, sort, after)
        with self._engine.connection() as connection:
            rows, place = list_transactions(connection, **asked, most=most)
        return TransactionsPage(
            [TransactionListing(row.transactional_id, row.producer_id, row.state) for row in rows], place
        )

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Describe a transactional id and its newest transaction. Raise `TransactionalIdNotFound`."""
        transactional_id = arguments.check_name("a transactional id", transactional_id)
        with self._engine.connection() as connection:
            found = describe_transaction(connection, transactional_id)
        if found is None:
            raise self._unknown(transactional_id)
        return found

    def _unknown(self, transactional_id: str) -> errors.TransactionalIdNotFound:
        listed = self.page(prefix=transactional_id[:1], most=LARGEST_PAGE).transactions
        known = [each.transactional_id for each in listed if each.transactional_id is not None]
        advice = did_you_mean(
            transactional_id, known, otherwise="an id begins with init_transactions, and expires when idle"
        )
        return errors.TransactionalIdNotFound(
            f"there is no transactional id {transactional_id!r}; {advice}", transactional_id=transactional_id
        )

    def outcome(self, transaction_id: TransactionId) -> Decision:
        """Return a transaction's outcome and its decider; UNKNOWN for an unknown name."""
        transaction_id = arguments.transaction_id(transaction_id)
        with self._engine.connection() as connection:
            return transaction_outcome(connection, transaction_id)

    def show(
        self,
        transaction: TransactionId | str,
        *,
        skip: int = 0,
        most: int = 1_000,
        offsets_after: Sequence[int] | None = None,
    ) -> ShownTransaction:
        """Return all that is stored of a transaction, or of the newest one of a transactional id.

        A text like `17.0.3` is the name of a transaction, any other text is a transactional id. Of its partitions, `most`
        behind the first `skip` are returned; its offsets from `offsets_after` on, which is `offsets_next` of an answer.
        Raise `TransactionalIdNotFound`, and `TransactionNotFound` if nothing of it is stored (its `outcome` is UNKNOWN), or
        nothing that the role may see.
        """
        skip = arguments.whole("skip", skip, most=arguments.LARGEST_INT4)
        most = arguments.whole("most", most, least=1, most=LARGEST_PAGE)
        if offsets_after is not None:
            offsets_after = [
                arguments.whole("offsets_after", each, most=arguments.LARGEST_INT4)
                for each in arguments.listed("offsets_after", offsets_after)
            ]
        name = self._named(transaction)
        return show(self._engine, name, skip=skip, most=most, offsets_after=offsets_after)

    def prepared(self, most: int = 1_000) -> "builtins.list[PreparedListing]":
        """Return transactions that wait for an outside decision, the oldest first, at most `most`.

        `client.complete(listing.token, commit=…)` decides one.
        """
        most = arguments.whole("most", most, least=1, most=arguments.LARGEST_INT4)
        with self._engine.connection() as connection:
            found, _ = undecided_seals(connection, most=most)
        return [
            PreparedListing(
                PreparedTransaction(one.transaction_id, str(self._engine.incarnation)),
                one.transactional_id,
                epoch_ms(one.sealed_at),
                one.partitions,
                one.client_host,
            )
            for one in found
            if one.kind == "external"
        ]

    def fence(self, transactional_id: str) -> ProducerId:
        """Fence the producer that uses a transactional id now, and abort its open transaction.

        Raise `TransactionalIdNotFound`.
        """
        transactional_id = arguments.check_name("a transactional id", transactional_id)
        with self._engine.connection() as connection:
            return fence_producer(connection, transactional_id)

    def abort(self, transaction_id: TransactionId) -> None:
        """Abort a transaction by its name; its producer lives on. Raise `InvalidTransactionState` if it is committed."""
        transaction_id = arguments.transaction_id(transaction_id)
        with self._engine.connection() as connection:
            outcome = end_transaction(connection, transaction_id, "admin")
        if outcome is Outcome.COMMITTED:
            raise errors.InvalidTransactionState(
                f"transaction {transaction_id} is committed and cannot be aborted", reason="committed"
            )
        if outcome is Outcome.OPEN:
            raise errors.InvalidTransactionState(
                f"transaction {transaction_id} is prepared for an outside decision", reason="prepared"
            )
        if outcome is Outcome.UNKNOWN:
            raise errors.InvalidTransactionState(
                f"transaction {transaction_id} is not open: nothing of it is stored", reason="unknown"
            )

    def find_hanging(
        self, max_transaction_timeout_ms: int | None = None, *, topic: str | None = None, partition: int | None = None
    ) -> "builtins.list[HangingTransaction]":
        """Return transactions that are undecided on a partition for longer than this (None: than their own timeout).

        Also sealed ones, and inconsistent ones: without a transaction row, or without a producer. The oldest first.
        Raise `UnknownTopicOrPartition`.
        """
        return find_hanging(self._engine, max_transaction_timeout_ms, topic=topic, partition=partition)

    def blocking(
        self, most: int = 100, *, transaction: TransactionId | str | None = None
    ) -> "builtins.list[BlockingTransaction]":
        """Return the undecided transactions for whose end something waits, with all of it; the oldest first.

        Partitions with their groups, offsets that it will commit, records that it has acknowledged: of the topics that the
        role may consume or observe. The advice is the one of `find_hanging`. `transaction`: only this one, by its name or
        its transactional id; none is returned if it blocks nothing. Raise `TransactionalIdNotFound`, `TransactionNotFound`.
        """
        most = arguments.whole("most", most, least=1, most=arguments.LARGEST_INT4)
        only = None if transaction is None else self._named(transaction)
        return blocking(self._engine, most=most, only=only)

    def _named(self, transaction: TransactionId | str) -> TransactionId:
        """Return a transaction by its name, or the newest one of a transactional id."""
        if isinstance(transaction, str) and not TRANSACTION_NAME.fullmatch(transaction.strip()):
            newest = self.describe(transaction).transaction_id
            if newest is None:
                raise errors.TransactionNotFound(
                    f"transactional id {transaction!r} has no transaction yet: one begins with its first record",
                    transactional_id=transaction,
                )
            return newest
        return arguments.transaction_id(transaction)


class _Asked(TypedDict):
    """What a list of transactions is to have; see `store.transactions.transactions.list_transactions`."""

    states: list[str]
    producer_ids: list[int]
    prefix: str
    by_producer: bool
    descending: bool
    after: int | None


def _asked(
    states: Collection[str] | None, producer_ids: Collection[int] | None, prefix: str, sort: str, after: int | None
) -> _Asked:
    sort = arguments.one_of("sort", sort, SORTS)
    return {
        "states": known_states(states, State),
        "producer_ids": []
        if producer_ids is None
        else [arguments.whole("a producer id", each) for each in arguments.listed("producer_ids", producer_ids)],
        "prefix": arguments.text("prefix", prefix),
        "by_producer": sort.endswith("producer_id"),
        "descending": sort.startswith("-"),
        "after": None if after is None else arguments.whole("after", after),
    }


def _open_longer(row: Listed, longer_than_ms: int, now: int) -> bool:
    return row.state == State.ONGOING and row.opened_at is not None and now - epoch_ms(row.opened_at) > longer_than_ms
