"""The state of a consumer group, as Kafka names it. Source: Kafka's `GroupState`."""

import enum


class GroupStatus(enum.StrEnum):
    """The state of a group. Dead: there is no such group, or nothing is left of it but its generation."""

    STABLE = "Stable"
    PREPARING_REBALANCE = "PreparingRebalance"
    EMPTY = "Empty"
    DEAD = "Dead"


def state_of(*, members: int, overdue: int, settled: bool, has_offsets: bool) -> GroupStatus:
    """Return the state of a group.

    `members`: those whose session is not over; `overdue`: the others. `settled`: the assignment was made of these members
    and of today's topics, and each partition is owned by the member that it is planned for.
    """
    if not members:
        return GroupStatus.EMPTY if has_offsets or overdue else GroupStatus.DEAD
    return GroupStatus.STABLE if settled and not overdue else GroupStatus.PREPARING_REBALANCE
