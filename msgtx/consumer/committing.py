"""The offsets that a consumer commits for its group: by itself, in a user's session, or with a transaction."""

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgtx import errors
from msgtx.config import ConsumerConfig
from msgtx.consumer.calls import ConsumerCalls
from msgtx.consumer.commits import Commits
from msgtx.consumer.fetcher import Fetcher
from msgtx.consumer.positions import Positions
from msgtx.consumer.rides import Ride, Rides
from msgtx.consumer.subscription import SubscriptionState
from msgtx.database.connection import Connection
from msgtx.database.pool import Engine
from msgtx.errors import IllegalState
from msgtx.rules.partition import Returned, ReturnedEvent
from msgtx.session.offsets import offsets_of
from msgtx.store.groups.groups import commit_offsets, offset_rows
from msgtx.types import GroupMetadata, Isolation, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:  # with a session, SQLAlchemy is imported
    from msgtx.session.enlistment import UserSession

log = logging.getLogger("msgtx.consumer")
BATCH_OPEN: Final = "a block of consumer.batch(session) is open: leave it before the commit"
Wanted = Mapping[TopicPartition, int | OffsetAndMetadata]


@dataclass(eq=False)
class Committing:
    """The positions of a consumer, and the commits that hold them."""

    engine: Engine
    config: ConsumerConfig
    calls: ConsumerCalls
    fetcher: Fetcher
    commits: Commits
    positions: Positions
    subscription: SubscriptionState
    rides: Rides = field(init=False)
    _by_hand: bool = False  # since the last records were returned
    _next_commit: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin without rides."""
        self.rides = Rides(self.fetcher, in_doubt=self.subscription.in_doubt)
        self._next_commit = time.monotonic() + self.config.auto_commit_interval_ms / 1000

    def group_metadata(self) -> GroupMetadata:
        """See `Consumer.group_metadata`."""
        if taken_away := self.subscription.taken_away:
            raise errors.NotAssigned(
                f"group {self.config.group!r}: {taken_away[0]} was taken away after records of it were handed out:"
                " another member has them now; abort what was made of them, and rewind",
                group=self.config.group,
                at=taken_away[0],
            )
        return self._member()

    def _member(self) -> GroupMetadata:
        group = self.calls.group()
        identities = {a.partition_id: a.read_identity for a in self.fetcher.assigned.values()}
        member = self.subscription.membership
        if member is None:
            return GroupMetadata(group, read_identities=identities)
        instance_id = self.config.group_instance_id
        return GroupMetadata(group, member.member_id(), member.generation, instance_id, read_identities=identities)

    def handed_out(self) -> None:
        """Note that new records were returned, so that the next commit may use either way again."""
        self._by_hand = False

    def of_transaction(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """See `Consumer._transaction_offsets`."""
        self.calls.group()
        if self.config.enable_auto_commit:
            raise IllegalState(
                "enable_auto_commit is on: set it to false to commit offsets with a transaction", reason="enable_auto_commit"
            )
        if self.config.isolation is not Isolation.READ_COMMITTED:
            raise IllegalState(
                "isolation is read_uncommitted: a transaction must not depend on what may be taken back", reason="isolation"
            )
        if self._by_hand:
            raise IllegalState(
                "offsets were committed by hand since the last poll: use one way, commit() or the transaction",
                reason="by hand",
            )
        self.fetcher.await_primary()
        self.commits.settle()  # an older offset must not be written after the transaction's
        positions = self._handled()
        self._settle(positions)
        return positions

    def commit(self, wanted: Wanted | None, *, wait: bool) -> None:
        """Commit these offsets, by default all positions."""
        wanted = None if wanted is None else offsets_of(wanted)
        try:
            group = self._member()
        except (errors.UnknownMember, errors.FencedInstance) as error:
            if wait:
                raise
            log.warning("group %r: offsets were not committed: %s", self.config.group, error)
            return
        positions = self._handled() if wanted is None else wanted
        by_id = self._by_id(positions)
        self._by_hand = True
        self.subscription.taken_away.clear()
        self._settle(positions)
        if wait:
            try:
                self.commits.commit(group, by_id)
            except errors.CommitsLost:
                self.calls.losses.told()
                raise
        else:
            self.commits.hand_over(group, by_id)

    def commit_in(
        self,
        session: "UserSession",
        wanted: Wanted | None,
        *,
        lost: ReturnedEvent = ReturnedEvent.LOSE,
        refusal: str | None = None,
    ) -> Ride:
        """Have these offsets committed with a user's session; `lost`: the event if it is rolled back."""
        from msgtx.session.enlistment import enlist

        wanted = None if wanted is None else offsets_of(wanted)
        group = self.group_metadata()
        self.require_by_session()
        if wanted is None:
            self.rides.require_not_overtaken()
        positions = self._handled() if wanted is None else wanted
        by_id = self._by_id(positions)
        self.fetcher.await_primary()
        self.commits.settle()
        enlisted = enlist(session, self.engine)
        self.calls.losses.ask()
        self.look_for_losses()
        ride = self.rides.add(enlisted, offset_rows(group, by_id), lost=lost, refusal=refusal)
        self.calls.losses.riding(ride, by_id)
        self._settle(positions)
        return ride

    def require_by_session(self) -> None:
        """Raise `IllegalState` if sessions cannot commit this consumer's offsets."""
        self.calls.group()
        if self.config.enable_auto_commit:
            raise IllegalState(
                "enable_auto_commit is on: set it to false to commit offsets with a session", reason="enable_auto_commit"
            )

    @contextlib.contextmanager
    def riding(self, session: "UserSession", refusal: str = BATCH_OPEN) -> Iterator[Ride]:
        """Add the positions of the last poll to a session; `refusal`: of a commit within the block. See `Consumer.batch`."""
        from msgtx.session.enlistment import is_begun

        ride, handed = None, self.rides.handed()
        try:
            ride = self.commit_in(session, None, lost=ReturnedEvent.LOSE_BATCH, refusal=refusal)
            yield ride
            ride.riding.allow()
        except BaseException:
            if ride is None:
                self.rides.take_back(handed)
            else:
                ride.riding.refusal = "what its records lead to has failed: roll the session back"
                ride.lost()
            raise
        if ride.is_lost and is_begun(session):
            raise IllegalState(
                "the session was rolled back while its records were handled, and used again: what it then commits would come"
                " without their offsets; raise an exception instead, or use a savepoint (session.begin_nested())",
                reason="rolled back",
            )

    def look_for_losses(self) -> None:
        """Raise `CommitsLost`, once, if a failover has lost the last commit of a partition."""
        losses = self.calls.losses
        if not losses.are_due:
            return
        self.commits.settle()  # what waits is refused now, and not written after the caller has been told
        lost = self.calls.asked(losses.look)
        losses.told()
        if lost is not None:
            raise lost

    def take_back(self) -> None:
        """Have the next poll return the records again that could not ride."""
        self.rides.take_back(self.rides.handed())

    def look_back(self) -> bool:
        """Go back where a batch was rolled back; return whether any was. Raise `IllegalState` where the caller has to."""
        back = self.rides.look_back(self.config.group)
        if back:
            self.subscription.go_back(back)
        return bool(back)

    def commit_automatically(self) -> None:
        """Commit all positions if that is this consumer's to do, and due."""
        if self.config.enable_auto_commit and time.monotonic() >= self._next_commit:
            self._next_commit = time.monotonic() + self.config.auto_commit_interval_ms / 1000
            self.commit_positions()

    def commit_positions(self) -> None:
        """Commit all positions in the background; a failure is only logged."""
        self.subscription.taken_away.clear()
        positions = self.positions.known()
        self._settle(self.fetcher.assigned)
        if positions:
            self.commits.hand_over(self._member(), self._by_id(positions))

    def commit_starts(self) -> None:
        """Commit the position of a reset before anything is read from it: the next reader continues there, lag shows."""
        self.calls.group()
        self.fetcher.commit_starts = self._commit_starts

    def _commit_starts(self, connection: Connection, starts: Mapping[int, int]) -> bool:
        positions = {partition_id: OffsetAndMetadata(offset) for partition_id, offset in starts.items()}
        try:
            commit_offsets(connection, {self._member(): positions})
        except (errors.IllegalGeneration, errors.NotAssigned, errors.UnknownMember, errors.FencedInstance) as error:
            log.info("group %r: partitions changed hands before they were read: %s", self.config.group, error)
            if self.subscription.membership is None:
                raise
            self.subscription.membership.due = True
            return False
        return True

    def _handled(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all positions, except of partitions whose batch was rolled back: they are past unprocessed records."""
        assigned = self.fetcher.assigned
        return {tp: at for tp, at in self.positions.known().items() if assigned[tp].returned is not Returned.GOES_BACK}

    def _by_id(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[int, OffsetAndMetadata]:
        assigned = self.fetcher.assigned
        return {
            assigned[tp].partition_id if tp in assigned else self.calls.partition_id(tp): at for tp, at in positions.items()
        }

    def _settle(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that a commit holds the returned records of these."""
        for tp in partitions:
            if tp in self.fetcher.assigned:
                self.fetcher.assigned[tp].committed()
