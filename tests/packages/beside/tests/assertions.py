"""Two functions that the tests of sentry-arroyo import and its archive lacks."""

import contextlib
import operator as operators
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def assert_changes(
    value: Callable[[], object],
    before: object,
    after: object,
    operator: Callable[[object, object], bool] = operators.eq,
) -> Iterator[None]:
    assert operator(value(), before), value()
    yield
    assert operator(value(), after), value()


def assert_does_not_change(
    value: Callable[[], object], same: object, operator: Callable[[object, object], bool] = operators.eq
) -> contextlib.AbstractContextManager[None]:
    return assert_changes(value, same, same, operator)
