"""Forks: an object that was made before a fork belongs to the parent process, and its copy in the child does nothing.

A child has a copy of each object, but none of the threads, and its connections share their sockets with the parent. So the
`Origin` of an object refuses a call there at once. No call waits for a missing thread, and none uses a connection of the
parent.
"""

import contextlib
import functools
import os
import socket
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

from msgtx.errors import IllegalState

Owner = TypeVar("Owner")
Kept = TypeVar("Kept")


class Origin:
    """A process, as the objects that were made in it know it."""

    __slots__ = ()
    current: "ClassVar[Origin]"

    @property
    def is_parent(self) -> bool:
        """Whether a fork lies in between: this process is a child of that one."""
        return self is not Origin.current

    def require(self, what: str) -> None:
        """Raise `IllegalState` in the child of a fork. `what` was made before it."""
        if self is not Origin.current:
            raise IllegalState(f"{what} was made before a fork; make a new client in the child process", reason="fork")


def kept(make: Callable[[Any], Kept]) -> Callable[[Any], Kept]:
    """Compute a property once: `functools.cached_property`, but its lock, which a child may inherit locked."""
    name = f"_{make.__name__}"

    @functools.wraps(make)
    def get(owner: Any) -> Kept:
        known = vars(owner)
        if name not in known:
            known.setdefault(name, make(owner))
        found: Kept = known[name]
        return found

    return get


def here() -> Origin:
    """Return the origin of an object that is made now."""
    return Origin.current


def follow(owner: Owner, forked: Callable[[Owner], None]) -> None:
    """Have `forked(owner)` called in children, as long as the owner is referenced.

    Only the thread that forked is there. Locks may be held by threads that are not.
    """
    _followers[owner] = forked


def cut_off(connection: Any) -> None:
    """Have a connection of psycopg's lead nowhere in children, as if the server had ended it; also when they close it."""
    _connections.add(connection)


def release(lock: Any) -> None:
    """Release a lock in the child: the thread that held it is not there."""
    lock._at_fork_reinit()  # as Python's own modules do


def _forked() -> None:
    Origin.current = Origin()
    for connection in list(_connections):
        _lead_nowhere(connection)
    for owner, forked in list(_followers.items()):
        forked(owner)


def _lead_nowhere(connection: Any) -> None:
    with contextlib.suppress(Exception):  # it is closed
        descriptor = connection.pgconn.socket
        ended, other = socket.socketpair()
        with ended, other:
            os.dup2(ended.fileno(), descriptor)


Origin.current = Origin()
_followers: "Final[weakref.WeakKeyDictionary[Any, Callable[[Any], None]]]" = weakref.WeakKeyDictionary()
_connections: "Final[weakref.WeakSet[Any]]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)
