"""Where the labels of a bar stand."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from msgtx.console.drawing import MOST_LEVELS, marks

NAMES = st.text(min_size=1, max_size=40)


@given(st.dictionaries(NAMES, st.integers(0, 1_200), max_size=60), st.integers(0, 500), st.integers(0, 1_000))
def test_every_group_has_a_mark_and_no_label_covers_another(groups: dict[str, int], start: int, length: int) -> None:
    found = marks(start, start + length, [{"group": name, "offset": offset} for name, offset in groups.items()])
    assert sorted(each["group"] for mark in found for each in mark.groups) == sorted(groups)
    assert all(0 <= mark.at <= 100 for mark in found)
    lines: dict[int, list[tuple[float, float]]] = {}
    for mark in found:
        if mark.level is not None:
            assert mark.level < MOST_LEVELS
            lines.setdefault(mark.level, []).append(mark.side)
    for sides in lines.values():
        sides.sort()
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(sides))
