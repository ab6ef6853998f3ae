"""Roles for tests of rights."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.databases import Connection
from tests.roles import Roles


@pytest.fixture
def guest(roles: Roles) -> Iterator[Callable[..., Connection]]:
    """Connect as a new login with these rights."""
    with contextlib.ExitStack() as stack:
        yield lambda *granted: stack.enter_context(contextlib.closing(roles.connect(roles.make(*granted))))
