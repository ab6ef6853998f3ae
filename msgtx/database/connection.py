"""Our own connections: one loop that sends and receives, and a limit on each wait for an answer.

psycopg passes each send and each receive to `Connection.wait`, as a generator that yields the awaited event. Here three
things are added. While it waits for an answer, it sends the rest of the question: psycopg's pipeline flushes once and then
only reads, so the server and we would wait for each other. And every wait has an end. A stopped server, or a COMMIT that
waits for a standby, answers nothing, and the system's own timeouts see a connection in good order. When time is over the
connection is closed, so that no late answer is taken for that of another call; the server may still do the work.

And a COMMIT that no synchronous standby has confirmed counts as not answered. If somebody cancels its wait for the standby,
PostgreSQL answers it with success and a WARNING, and a failover may lose it (decision 0167).
"""

import contextlib
import functools
import math
import socket
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any, Final, Self

import psycopg
from psycopg import pq
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic

from msgtx.database.wire import Statements

RawConnection = psycopg.Connection[Any]
AsyncRawConnection = psycopg.AsyncConnection[Any]

# Most calls take milliseconds, the longest wait in one is that for a lock (10 s); the rest is for a slow disk's flush.
ANSWER_SECONDS: Final = 60.0
# For work whose single statements may read or write a whole log (sweeps, verify, deleting a topic): longer than any was
# seen to take, shorter than an administrator waits.
LONG_ANSWER_SECONDS: Final = 3_600.0
CONNECT_SECONDS: Final = 10
# The function of PostgreSQL that sends the warning. Its words are translated, and its SQLSTATE is that of every warning.
_WAIT_FOR_STANDBY: Final = "SyncRepWaitForLSN"
LOOK_SECONDS: Final = 0.1  # between two looks at the time: how far past a deadline a call may come back


class until(contextlib.ContextDecorator):  # noqa: N801 - as contextlib's own; a generator takes a microsecond more
    """Let no call within wait past `deadline` (of `time.monotonic`), nor longer than `silence` seconds for a sign of life.

    A function as deadline is asked again while a call waits. Within another, the earlier deadline counts, and the inner
    silence. Not around a `yield` of a generator.
    """

    def __init__(self, deadline: float | Callable[[], float] = math.inf, *, silence: float | None = None) -> None:
        self._given = deadline
        self._outer: until | None = None
        self.silence = silence  # the longest that nothing comes and nothing goes; None: the connection's own

    def __enter__(self) -> None:
        """Begin to limit the calls of this thread or task."""
        outer = _current_limits()
        self._outer = outer
        if self.silence is None:
            self.silence = outer.silence
        self._token = _limits.set(weakref.ref(self))

    def __exit__(self, *_: object) -> None:
        """Leave the calls to the limits around this one."""
        _limits.reset(self._token)

    def _recreate_cm(self) -> "until":
        return until(self._given, silence=self.silence)

    def deadline(self) -> float:
        """Return when everything within is over, by `time.monotonic`."""
        given = self._given() if callable(self._given) else self._given
        return given if self._outer is None else min(given, self._outer.deadline())


def _current_limits() -> until:
    known = _limits.get()
    found = None if known is None else known()
    return _NO_LIMITS if found is None else found


_NO_LIMITS: Final = until()
# Weak: `with` holds it for as long as it counts, also if an interrupt keeps `__exit__` from its work.
_limits: "ContextVar[weakref.ref[until] | None]" = ContextVar("msgtx_limits", default=None)


def seconds_left() -> float:
    """Return how long calls may still take here; infinity without a deadline."""
    return max(0.0, _current_limits().deadline() - time.monotonic())


class Pipeline(psycopg.Pipeline):
    """A pipeline that sends nothing after its last Sync, and whose COMMIT may fail.

    psycopg's own sends a Flush there if the answer to that Sync has not come yet. A pooler in transaction mode has
    taken the session back with that answer. It gives the client another session for the Flush, until the next Sync,
    which an idle client never sends.

    A failed COMMIT of a Sync has two answers: its error and the end of the Sync. psycopg expects one, and would take the
    other for its next answer.
    """

    _ended = True  # the answer to a Sync came last: the server is in no SQL transaction and skips nothing

    def _process_results(self, queued: Any, results: list[pq.abc.PGresult]) -> None:
        if queued is None and results[0].status == pq.ExecStatus.FATAL_ERROR:
            self.result_queue.appendleft(None)
        self._ended = results[0].status == pq.ExecStatus.PIPELINE_SYNC
        super()._process_results(queued, results)

    def _exit_gen(self) -> PQGen[None]:
        if self._ended and not self.command_queue and not self.result_queue:
            return
        try:
            self._enqueue_sync()
            yield from self._communicate_gen()
        finally:  # what is not fetched keeps the connection in pipeline mode
            yield from self._fetch_gen(flush=False)


def is_unconfirmed(source_function: str | None) -> bool:
    """Return whether a notice of this function means that a COMMIT did not wait for its synchronous standby to the end."""
    return source_function == _WAIT_FOR_STANDBY


class _Heard:
    """What the server has said beside its answers. Not the connection itself: that would hold a reference to itself."""

    __slots__ = ("unconfirmed",)

    def __init__(self) -> None:
        self.unconfirmed = False

    def hear(self, notice: Diagnostic) -> None:
        """Note a COMMIT that the synchronous standby may not have."""
        self.unconfirmed = self.unconfirmed or is_unconfirmed(notice.source_function)


class Connection(psycopg.Connection[Any]):
    """A connection of our own. `silence`: how long it waits for a sign of life where `until` says nothing else.

    `hook`: that of its engine, when it was checked out. `given_up`: called when the server gave no answer in time, or takes
    no writes any more. `server`: system identifier and timeline, where the server says them.
    """

    silence: float = ANSWER_SECONDS
    hook: Callable[[str], None] | None = None
    given_up: Callable[[], None] = staticmethod(lambda: None)
    server: tuple[int, int] | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.opened_at = time.monotonic()
        self._heard = _Heard()
        self.add_notice_handler(self._heard.hear)

    @functools.cached_property
    def statements(self) -> Statements:
        """The functions that were called on it, and the shortest way to call one again."""
        return Statements(self)

    @property
    def has_news(self) -> bool:
        """Whether something has come that nobody has read: to an idle connection its end, or seldom a changed setting."""
        return self.statements.has_answer(0)

    @classmethod
    def connect(cls, conninfo: str = "", **options: Any) -> Self:
        """Open a connection; names of hosts are looked up for as long as a connection may take, and no longer.

        Several hosts are tried one after the other, each for as long; where a call has a deadline, they share the
        remaining time.
        """
        given = conninfo_to_dict(conninfo, **{name: options.pop(name) for name in [*options] if name not in _PSYCOPGS})
        seconds = min(float(given.get("connect_timeout") or CONNECT_SECONDS), seconds_left())
        found = _resolved(given, seconds)
        hosts = 1 + str(found.get("hostaddr") or found.get("host") or "").count(",")
        found["connect_timeout"] = max(1, math.ceil(min(seconds, seconds_left() / hosts)))
        return super().connect(**found, **options)

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """Switch to pipeline mode: see `Pipeline`."""
        self._pipeline = self._pipeline or Pipeline(self)
        try:
            with super().pipeline() as pipeline:
                yield pipeline
        finally:
            if self.closed:
                self._pipeline = None

    def wait(self, gen: PQGen[RV], interval: float = LOOK_SECONDS, timeout: float | None = None) -> RV:
        """Run a generator of psycopg, see above. Raise `psycopg.OperationalError` when time is over or an answer is void."""
        return super().wait(self._watched(gen), interval=min(interval, LOOK_SECONDS), timeout=timeout)

    def _watched(self, gen: PQGen[RV]) -> PQGen[RV]:
        limits = _current_limits()
        silence = self.silence if limits.silence is None else limits.silence
        heard = looked = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                holds = wanted == _READ and self.pgconn.flush() != 0
                ready = yield _BOTH if holds else wanted
                now = time.monotonic()
                if ready:
                    heard = now
                if not ready or now - looked >= LOOK_SECONDS:
                    looked = now
                    if now >= limits.deadline():
                        self._give_up(gen, "the call's time is over")
                    if now - heard >= silence:
                        self._give_up(gen, f"nothing for {silence:g} s")
                if ready != _WRITABLE or not holds:  # else only the rest of the question could go on
                    wanted = gen.send(ready)
        except StopIteration as end:
            if self._heard.unconfirmed:
                self._give_up(gen, "the wait of its COMMIT for the synchronous standby was cancelled")
            answer: RV = end.value
            return answer

    def _give_up(self, gen: Generator[Any, Any, Any], why: str) -> None:
        self.close()
        self.given_up()
        with contextlib.suppress(Exception):  # it would speak to a connection that is closed
            gen.close()
        raise psycopg.OperationalError(f"the server did not answer ({why}); the connection was given up")


class OnStandby(Connection):
    """A connection to a standby. A call of a function there only reads, and may be repeated."""

    began_in_recovery: bool = False
    beside: tuple[int, int] | None = None  # the primary (system identifier, timeline) that was known when it began

    @property
    def is_promoted(self) -> bool:
        """Whether the server was a standby when the connection began, and is none as of the last answer."""
        return self.began_in_recovery and self.info.parameter_status("in_hot_standby") == "off"


_READ, _BOTH, _WRITABLE = psycopg.waiting.Wait.R, psycopg.waiting.Wait.RW, psycopg.waiting.Ready.W
_PSYCOPGS: Final = {"autocommit", "prepare_threshold", "context", "row_factory", "cursor_factory"}


def _resolved(given: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return parameters with the addresses of their hosts. The system's look-up cannot be interrupted: a thread does it."""
    hosts = str(given.get("host") or "").split(",")
    if given.get("hostaddr") or not any(map(_is_name, hosts)):
        return given
    ports = str(given.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if len(ports) != len(hosts):
        return given  # psycopg says what is wrong
    places: list[tuple[str, str, str]] = []
    failure: psycopg.OperationalError | None = None
    for host, port in zip(hosts, ports, strict=True):
        if not _is_name(host):
            places.append((host, host if _is_address(host) else "", port))
            continue
        try:
            places.extend((host, address, port) for address in _look_up(host, seconds))
        except psycopg.OperationalError as error:
            failure = error
    if not places and failure is not None:
        raise failure
    names, addresses, numbers = (",".join(column) for column in zip(*places, strict=True))
    return {**given, "host": names, "hostaddr": addresses, "port": numbers}


def _look_up(host: str, seconds: float) -> Sequence[str]:
    found: list[str] = []
    failed: list[Exception] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP, type=socket.SOCK_STREAM)
            found.extend(str(answer[4][0]) for answer in answers)
        except (OSError, UnicodeError) as error:  # also a label of more than 63 characters
            failed.append(error)

    asking = threading.Thread(target=ask, name="msgtx-resolver", daemon=True)
    try:
        asking.start()
    except RuntimeError as error:  # "can't start new thread": as passing as a name server that is away
        raise psycopg.OperationalError(f"failed to resolve host {host!r}: {error}") from error
    asking.join(seconds)
    if failed or not found:
        why = failed[0] if failed else f"no answer within {seconds:g} s"
        raise psycopg.OperationalError(f"failed to resolve host {host!r}: {why}")
    return list(found)


def _is_name(host: str) -> bool:
    return bool(host) and host[0] not in "/@" and not _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
