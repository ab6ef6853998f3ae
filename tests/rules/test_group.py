"""The state of a group, as Kafka names it."""

import pytest

from msgtx.rules.group import State, state_of


@pytest.mark.parametrize(
    ("members", "overdue", "settled", "has_offsets", "expected"),
    [
        (0, 0, True, False, State.DEAD),
        (0, 0, False, False, State.DEAD),
        (0, 0, True, True, State.EMPTY),
        (0, 0, False, True, State.EMPTY),
        (0, 2, True, False, State.EMPTY),
        (2, 0, True, False, State.STABLE),
        (2, 0, True, True, State.STABLE),
        (2, 0, False, True, State.PREPARING_REBALANCE),
        (2, 1, True, True, State.PREPARING_REBALANCE),
    ],
)
def test_the_state_follows_from_the_rows(
    members: int, overdue: int, settled: bool, has_offsets: bool, expected: State
) -> None:
    assert state_of(members=members, overdue=overdue, settled=settled, has_offsets=has_offsets) is expected
