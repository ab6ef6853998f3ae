"""Names that users give."""

import pytest

from msgtx.rules.names import producer_named


@pytest.mark.parametrize(
    ("text", "producer"),
    [
        ("7", 7),
        ("007", 7),
        ("9223372036854775807", 9223372036854775807),
        ("orders-1", "orders-1"),
        ("-1", "-1"),
        ("٣", "٣"),
        ("", ""),
        ("1" * 20, "1" * 20),
        ("9" * 5_000, "9" * 5_000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_digits_name_a_producer_id_as_long_as_an_id_can_be(text: str, producer: int | str) -> None:
    assert producer_named(text) == producer
