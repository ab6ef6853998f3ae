"""The msgtx clients below the facade: one for all objects of a process that use the same database."""

import os
import threading
import weakref
from typing import Final

import msgtx
from msgtx.database.opening import VARIABLE

# The garbage collector may release an object in the middle of a step that holds it.
_lock: Final = threading.RLock()
_open: "Final[dict[tuple[int, str | None], _Shared]]" = {}


class _Shared:
    """A client, with the number of its users. The last one closes it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0
        self.client: msgtx.Client | None = None

    def get(self) -> msgtx.Client:
        with self.lock:  # the first call connects, the others wait for it
            if self.client is None or self.client.closed:
                self.client = msgtx.connect()
            return self.client


class ClientOf:
    """The client of one object of the facade. It connects with the first call that needs the database."""

    def __init__(self, owner: object) -> None:
        self._place = (os.getpid(), os.environ.get(VARIABLE))
        with _lock:
            self._shared = _open.setdefault(self._place, _Shared())
            self._shared.users += 1
        self.release = weakref.finalize(owner, _release, self._place, self._shared)

    def get(self) -> msgtx.Client:
        """Return the client. Raise as `msgtx.connect`."""
        return self._shared.get()


def _release(place: tuple[int, str | None], shared: _Shared) -> None:
    with _lock:
        shared.users -= 1
        if shared.users:
            return
        _open.pop(place, None)
    if shared.client is not None:
        shared.client.close()
