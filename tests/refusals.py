"""An error of msgtx as a test expects it: by its class and its attributes. Its words stand in `tests/sentences.txt`."""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest

# The sentence tells of each of these, so that a person reads what a program finds in the attribute.
TOLD: Final = ("topic", "partition", "offset", "group", "member_id", "transactional_id", "producer_id", "role", "limit")


@contextlib.contextmanager
def refuses(kind: type[Exception] | tuple[type[Exception], ...], **values: object) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect an error with these attributes."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert {name: getattr(error, name) for name in values} == values, error
    assert all(str(values[name]) in str(error) for name in TOLD if name in values), error
