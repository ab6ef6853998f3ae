"""A wire between programs and a PostgreSQL server, which breaks where it is told to.

It reads the protocol, so it knows where a call ends. A *boundary* is one side of one call: *before* the server has it, or
*after* the server has answered, which includes COMMIT, when the client has not seen the answer. It serves any driver in any
process, since it stands behind all of them.
"""

import asyncio
import contextlib
import os
import socket
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from msgtx.database import address, throwaway
from msgtx.errors import ConfigError
from msgtx.testing import protocol

T = TypeVar("T")
Side = Literal["before", "after"]
LARGEST_HELD_BYTES: Final = 1 << 20  # of a call before it is passed on; what is larger is passed on in parts
STOP_SECONDS: Final = 10.0
DEFAULT_PORT: Final = "5432"
SOCKET: Final = ".s.PGSQL."  # libpq's name of a Unix socket, before its port
# Calls of background threads: when they come depends on time, and a number must mean the same boundary in every run.
OF_THREADS: Final = frozenset(
    {
        *("msgtx.heartbeat_group", "msgtx.heartbeat_share_group", "msgtx.mark", "msgtx.listen", "msgtx.notify_readers"),
        *("msgtx.tell_readers", "msgtx.remove_wake_ups", "msgtx.woken_since", "msgtx.remove_superseded_shares"),
        *("msgtx.flush_offsets", "msgtx.renew_locks"),
    }
)
# What changes nothing that a program sees, though PostgreSQL does not know it.
ONLY_READ: Final = frozenset({"msgtx.describe_share_groups", "msgtx.describe_installation", "msgtx.identify_server"})
UNCOUNTED: Final = OF_THREADS | ONLY_READ


@dataclass(slots=True)
class WireCall:
    """A call that a client has sent. `time`: of this name, from 1, in the order of arrival; 0 of one that is not counted."""

    time: int
    name: str
    lost: "Plan | None" = None
    by_sync: bool = False  # its end is a Sync, as of the extended protocol

    @property
    def place(self) -> str:
        """Return by what it is known in every run: its name, and which one of this name it is."""
        return f"{self.name} #{self.time}"


@dataclass(slots=True, eq=False)
class Plan:
    """What happens once: at the first call for which `is_it(call, side)` holds. `action` runs before the connection ends."""

    is_it: Callable[[WireCall, Side], bool]
    action: Callable[[], object]
    holds: bool = False  # the connection carries nothing until `thaw`, instead of ending
    fired: threading.Event = field(default_factory=threading.Event)


class Wire:
    """Carry everything between `url` and the server, and break it by plan. For any thread.

    It needs a server that accepts connections without TLS. `reading`: the functions that change nothing, where they are
    known. Raise `ConfigError` for an address that requires TLS.
    """

    def __init__(self, url: str, reading: frozenset[str] | None = None) -> None:
        self._parameters = throwaway.reached(url)
        mode = self._parameters.get("sslmode") or os.environ.get("PGSSLMODE", "prefer")
        if mode not in {"disable", "allow", "prefer"}:
            raise ConfigError(f"faults are made between client and server, without TLS; sslmode is {mode}", name="url")
        self.reading = UNCOUNTED | (throwaway.functions_that_read(url) if reading is None else reading)
        self.calls: list[WireCall] = []
        self._times: Counter[str] = Counter()
        self._plans: list[Plan] = []
        self._open: set[_Connection] = set()
        self._away, self._lock = 0, threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="msgtx-wire", daemon=True)
        self._thread.start()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if self._parameters["host"].startswith("/"):
            # The server may know us by our account (peer): no other account may come in by this wire.
            self._folder = tempfile.TemporaryDirectory(prefix="msgtx-wire-")
            host, port = self._folder.name, DEFAULT_PORT
            self._listener = self._run(asyncio.start_unix_server(self._accepted, f"{host}/{SOCKET}{port}"))
        else:
            host = "127.0.0.1"
            self._listener = self._run(asyncio.start_server(self._accepted, host, 0))
            port = str(self._listener.sockets[0].getsockname()[1])
        rest = {name: value for name, value in self._parameters.items() if name != "hostaddr"}
        self.url = address.whole_url({**rest, "host": host, "port": port, "sslmode": "disable"})

    def close(self) -> None:
        """End all connections and the thread."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()
        if self._folder is not None:
            self._folder.cleanup()

    def lead_to(self, url: str) -> None:
        """Have later connections lead to another server with the same roles and databases."""
        self._parameters = throwaway.reached(url)

    def plan(self, plan: Plan) -> Plan:
        """Add a plan."""
        self._call(lambda: self._plans.append(plan))
        return plan

    def forget(self, plan: Plan) -> None:
        """Remove a plan, if it is still due."""
        self._call(lambda: self._plans.remove(plan) if plan in self._plans else None)

    def leave(self) -> None:
        """End every connection, and each later one at once, until each `leave` has its `come_back`."""
        with self._lock:
            self._away += 1
        self._call(self._cut)

    def come_back(self) -> None:
        """Take connections again, unless another one has it away."""
        with self._lock:
            self._away -= 1

    def thaw(self) -> None:
        """Have the connections that are held carry again, with what has waited."""

        def flow() -> None:
            for each in self._open:
                each.flows.set()

        self._call(flow)

    # ── in the thread ──

    def _call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return self._run(called())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            raise RuntimeError("an action of a plan may not wait for the wire")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(STOP_SECONDS)

    async def _close(self) -> None:
        self._listener.close()
        self._cut()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cut(self) -> None:
        for each in [*self._open]:
            each.end()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        if self._away:
            connection.end()
            return
        self._open.add(connection)
        try:
            await connection.carry()
        except asyncio.CancelledError:  # `close`: asyncio would log it
            pass
        finally:
            connection.end()
            self._open.discard(connection)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the server."""
        host = self._parameters["host"].split(",")[0]
        port = (self._parameters.get("port") or DEFAULT_PORT).split(",")[0]
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/{SOCKET}{port}")
        return await asyncio.open_connection(self._parameters.get("hostaddr", host).split(",")[0], int(port))

    def sent(self, name: str, *, counts: bool) -> WireCall:
        """Note a call, and count it if it may write."""
        if not counts:
            return WireCall(0, name)
        self._times[name] += 1
        call = WireCall(self._times[name], name)
        self.calls.append(call)
        return call

    def planned(self, call: WireCall, side: Side) -> Plan | None:
        """Return the plan that is due on this side of a call, once."""
        for plan in self._plans if call.time else ():
            if plan.is_it(call, side):
                self._plans.remove(plan)
                return plan
        return None

    def fire(self, plan: Plan) -> None:
        """Do what is planned; then whoever waits for it goes on."""
        plan.action()
        plan.fired.set()


class _Connection:
    """One connection of a client, and one to the server."""

    def __init__(self, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self._wire = wire
        self._client, self._to_client = reader, writer
        self._to_server: asyncio.StreamWriter | None = None
        self._statements = protocol.Statements()
        self._unanswered: deque[WireCall] = deque()
        self._started = False
        self._counts = True
        self._copies = False  # rows of a COPY whose Sync the server has passed over: another one comes behind the rows

    def end(self) -> None:
        """End both connections at once, as a crash does."""
        for writer in (self._to_client, self._to_server):
            if writer is not None:
                with contextlib.suppress(OSError):  # a fork of this process has the socket, too, and would keep it open
                    writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
                writer.transport.abort()

    async def carry(self) -> None:
        """Carry until one of the ends is gone."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            code, startup = await protocol.read_startup(self._client)
            while code in {protocol.SSL_REQUEST, protocol.GSS_REQUEST}:
                self._to_client.write(protocol.NO)
                code, startup = await protocol.read_startup(self._client)
            server, self._to_server = await self._wire.connect()
            if code == protocol.CANCEL_REQUEST:
                self._to_server.write(startup)
                await server.read()
                return
            opening = self._wire.sent("connect", counts=False)
            if await self._is_over(opening):
                return
            self._unanswered.append(opening)
            self._to_server.write(startup)
            both = [asyncio.ensure_future(self._ask(self._to_server)), asyncio.ensure_future(self._answer(server))]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in both:
                    each.cancel()
                await asyncio.gather(*both, return_exceptions=True)

    async def _ask(self, to_server: asyncio.StreamWriter) -> None:
        """Pass calls on, each as a whole."""
        held = bytearray()
        while True:
            message = await protocol.read_message(self._client)
            self._statements.note(message)
            held += message.whole
            if self._copies and message.kind == protocol.SYNC:
                self._copies = False
            elif self._started and message.kind in protocol.ENDS_OF_CALLS:
                name, writes = self._statements.take(self._wire.reading)
                self._counts = self._counts and not protocol.listens(name)
                call = self._wire.sent(name, counts=self._counts and writes)
                call.by_sync = message.kind == protocol.SYNC
                if await self._is_over(call):
                    return
                self._unanswered.append(call)
            elif (
                self._started
                and message.kind in {protocol.PARSE, protocol.BIND, protocol.EXECUTE, b"D", b"C"}
                and len(held) < LARGEST_HELD_BYTES
            ):
                continue
            await self.flows.wait()
            to_server.write(held)
            held = bytearray()
            await to_server.drain()

    async def _is_over(self, call: WireCall) -> bool:
        """Do what is planned before a call. Returns whether the connection ends by it."""
        plan = self._wire.planned(call, "before")
        if plan is None:
            call.lost = self._wire.planned(call, "after")
            return False
        if plan.holds:
            self.flows.clear()
        self._wire.fire(plan)
        await self.flows.wait()
        return not plan.holds

    async def _answer(self, server: asyncio.StreamReader) -> None:
        """Pass answers back, but for one that is to be lost."""
        while True:
            message = await protocol.read_message(server)
            call = self._unanswered[0] if self._unanswered else None
            is_end = message.kind == protocol.READY
            if is_end and call is not None:
                self._unanswered.popleft()
                self._started = True
            if call is not None and message.kind in protocol.COPIES:
                self._copies = call.by_sync
            if call is not None and call.lost is not None:
                if is_end:
                    self._wire.fire(call.lost)
                    return
                if self._started and message.kind not in protocol.COPIES:
                    continue
            await self.flows.wait()
            self._to_client.write(message.whole)
            await self._to_client.drain()
