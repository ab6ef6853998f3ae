"""Who looks: sessions of signed-in roles, the connections of each role, and the limit on attempts."""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgtx.client import Client
from msgtx.database import address
from msgtx.database.pool import Engine
from msgtx.store.operator.installation import describe_installation, require_version

SESSION_IDLE_SECONDS: Final = 30 * 60  # without a page; a stream of live updates is no page
SESSION_SECONDS: Final = 12 * 3_600  # of a session, however busy: a working day
MOST_SESSIONS: Final = 1_000  # a bound for memory
CONNECTIONS: Final = 2  # of a role: one page has one at a time, another one may be slow
SILENCE_SECONDS: Final = 10.0  # of a server that shows no sign of life: a page says so then
STATEMENT_SECONDS: Final = 5  # a page that takes longer is not waited for
# The server has to prove by SCRAM that it knows the password. A server that asks for none would let anybody in as anybody.
_ONLY_SCRAM: Final = "scram-sha-256"
OPERATORS_OWN: Final = ("user", "password", "passfile", "sslcert", "sslkey", "sslpassword", "service")
WINDOW_SECONDS: Final = 300.0
MOST_FAILURES: Final = {"peer": 10, "role": 30}  # within the window; a role has more, since others can use them up
MOST_COUNTED: Final = 10_000  # addresses and roles: a bound for memory

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks: a name to show, and a client with the rights of a role."""

    name: str
    client: Client


@dataclass(slots=True)
class _Session:
    viewer: Viewer
    began: float
    seen: float


def open_client(base: Engine, *, role: str | None = None, password: str = "") -> Client:
    """Connect as a role, or as the base does; the console's limits apply. Raise `LoginRefused`, `DatabaseUnavailable`."""
    parameters = dict(base.parameters)
    if role is not None:
        parameters = {name: value for name, value in parameters.items() if name not in OPERATORS_OWN}
        parameters |= {"user": role, "password": password, "require_auth": _ONLY_SCRAM}
    limits = f"-c statement_timeout={STATEMENT_SECONDS * 1_000}"
    parameters["options"] = f"{parameters.get('options', '')} {limits}".strip()
    parameters["application_name"] = "msgtx console"
    engine = Engine(
        address.conninfo(parameters),
        pool_size=CONNECTIONS,
        embedded=base.embedded,
        connect=base.connect,
        silence=SILENCE_SECONDS,
    )
    try:
        with engine.connection() as connection:
            found = describe_installation(connection)
        engine.expect(found.incarnation)
        require_version(found)
    except BaseException:
        engine.close()
        raise
    return Client(engine)


class Sessions:
    """The signed-in roles. A cookie is a random number of 256 bits; here only its hash is kept."""

    def __init__(self, base: Engine, *, clock: Clock = time.monotonic) -> None:
        self._base = base
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[bytes, _Session] = {}

    def begin(self, role: str, password: str) -> str:
        """Check a password by connecting with it. Return the cookie. Raise `LoginRefused`, `DatabaseUnavailable`."""
        client = open_client(self._base, role=role, password=password)
        cookie = secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            left = self._expire(now)
            others = [each for each in self._sessions.values() if each.viewer.name == role]
            known = next((each.viewer.client for each in others), None)
            if known is not None and known.secret_url == client.secret_url:
                left.append(client)  # the role has its connections already
                client = known
            elif known is not None:  # the password was changed meanwhile
                left.append(known)
                for each in others:
                    each.viewer = Viewer(role, client)
            if len(self._sessions) >= MOST_SESSIONS:
                oldest = min(self._sessions, key=lambda key: self._sessions[key].seen)
                left += self._end(oldest)
            self._sessions[_hash(cookie)] = _Session(Viewer(role, client), now, now)
        _close(left)
        return cookie

    def find(self, cookie: str, *, touch: bool = True) -> Viewer | None:
        """Return who has this cookie, if the session is not over. `touch`: somebody asked for a page."""
        now = self._clock()
        with self._lock:
            left = self._expire(now)
            session = self._sessions.get(_hash(cookie))
            if session is not None and touch:
                session.seen = now
        _close(left)
        return None if session is None else session.viewer

    def end(self, cookie: str) -> None:
        """Sign out. The last session of a role takes its connections with it."""
        with self._lock:
            left = self._end(_hash(cookie))
        _close(left)

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            left = [client for key in list(self._sessions) for client in self._end(key)]
        _close(left)

    def _expire(self, now: float) -> list[Client]:
        over = [
            key
            for key, each in self._sessions.items()
            if now - each.seen >= SESSION_IDLE_SECONDS or now - each.began >= SESSION_SECONDS
        ]
        return [client for key in over for client in self._end(key)]

    def _end(self, key: bytes) -> list[Client]:
        ended = self._sessions.pop(key, None)
        if ended is None or any(each.viewer.client is ended.viewer.client for each in self._sessions.values()):
            return []
        return [ended.viewer.client]


class Attempts:
    """Failed attempts to sign in, by address and by role."""

    def __init__(self, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[tuple[str, str], list[float]] = {}

    def seconds_to_wait(self, *, peer: str, role: str) -> float:
        """Return how long the next attempt has to wait; 0: it may be made."""
        now = self._clock()
        with self._lock:
            waits = []
            for key in (("peer", peer), ("role", role)):
                recent = [at for at in self._failures.get(key, []) if now - at < WINDOW_SECONDS]
                if len(recent) >= MOST_FAILURES[key[0]]:
                    waits.append(WINDOW_SECONDS - (now - recent[0]))
            return max(waits, default=0.0)

    def failed(self, *, peer: str, role: str) -> None:
        """Count a failure."""
        now = self._clock()
        with self._lock:
            if len(self._failures) >= MOST_COUNTED:
                self._failures = {key: times for key, times in self._failures.items() if now - times[-1] < WINDOW_SECONDS}
                if len(self._failures) >= MOST_COUNTED:
                    self._failures.clear()
            for key in (("peer", peer), ("role", role)):
                times = self._failures.setdefault(key, [])
                times.append(now)
                del times[: -MOST_FAILURES[key[0]]]


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode(errors="replace")).digest()


def _close(clients: list[Client]) -> None:
    for client in clients:
        client.close()
