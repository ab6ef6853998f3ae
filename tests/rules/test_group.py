"""The state of a group, as Kafka names it."""

import pytest

from msgtx.rules.group import GroupStatus, state_of


@pytest.mark.parametrize(
    ("members", "overdue", "settled", "has_offsets", "expected"),
    [
        (0, 0, True, False, GroupStatus.DEAD),
        (0, 0, False, False, GroupStatus.DEAD),
        (0, 0, True, True, GroupStatus.EMPTY),
        (0, 0, False, True, GroupStatus.EMPTY),
        (0, 2, True, False, GroupStatus.EMPTY),
        (2, 0, True, False, GroupStatus.STABLE),
        (2, 0, True, True, GroupStatus.STABLE),
        (2, 0, False, True, GroupStatus.PREPARING_REBALANCE),
        (2, 1, True, True, GroupStatus.PREPARING_REBALANCE),
    ],
)
def test_the_state_follows_from_the_rows(
    members: int, overdue: int, settled: bool, has_offsets: bool, expected: GroupStatus
) -> None:
    assert state_of(members=members, overdue=overdue, settled=settled, has_offsets=has_offsets) is expected
