"""Links to a server that are worse than a loopback: small buffers, delays, silence, a cut. They carry bytes in threads."""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgtx.database import address

# A relay that holds back the end of each answer, the six bytes of READY, until a line comes. A process of its own, since a
# caller that waits for those bytes may let no thread run.
HOLDING_BACK: Final = """
import os, select, socket, sys

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
client, _ = listener.accept()
server = socket.create_connection((sys.argv[1], int(sys.argv[2])))
holding, held = False, b""
while True:
    ready, _, _ = select.select([client, server, sys.stdin], [], [], 30)
    if not ready:
        break
    if sys.stdin in ready:
        word = os.read(0, 1)
        if not word:
            break
        holding = word == b"h"
        if not holding:
            client.sendall(held)
            held = b""
    for source, target in ((client, server), (server, client)):
        if source in ready:
            data = source.recv(1 << 20)
            if not data:
                sys.exit()
            if holding and source is server:
                data, held = held + data, b""
                data, held = data[:-6], data[-6:]
            target.sendall(data)
"""
PIECE_BYTES: Final = 8 * 1024
HELD_PIECES: Final = 16  # that a slow link carries at once: what comes after them waits at the sender
LOST_SECONDS: Final = 60.0  # a piece waits this long for its turn; a test that freezes a link is over by then
SOCKET: Final = ".s.PGSQL.5432"  # libpq's name of a Unix socket, by its port


class Link:
    """A listener that passes bytes on to a server, and back. `url` leads through it.

    Over a Unix socket whose buffers hold a fraction of a bulk call, or (`delay`, in seconds each way) over TCP with small
    buffers. `freeze` makes it accept and carry nothing, like a stopped server; `strand` does so to the connections that
    are open, like a firewall that has forgotten them; `cut` ends what goes through it. After `leave` it refuses every
    connection, like a server that was stopped, until `come_back`.
    """

    def __init__(self, url: str, *, delay: float | None = None) -> None:
        self._server = address.parse(url)
        self._delay = delay or 0.0
        self._flows = threading.Event()
        self._flows.set()
        self._stranded: list[threading.Event] = []
        self._open: list[socket.socket] = []
        self._away = False
        self.carried = 0  # bytes, both ways
        self._folder = tempfile.TemporaryDirectory(prefix="msgtx-link-")
        if delay is None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(Path(self._folder.name) / SOCKET))
            place = {"host": self._folder.name, "port": "5432"}
        else:
            self._listener = socket.socket()
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)  # those accepted inherit it
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE_BYTES)
            self._listener.bind(("127.0.0.1", 0))
            place = {"host": "127.0.0.1", "port": str(self._listener.getsockname()[1])}
        self._listener.listen()
        self.url = address.conninfo({**self._server, **place})
        threading.Thread(target=self._accept, name="link", daemon=True).start()

    def freeze(self) -> None:
        """Carry nothing from now on."""
        self._flows.clear()

    def thaw(self) -> None:
        """Carry again, also what waited."""
        self._flows.set()

    def strand(self) -> None:
        """Carry nothing more over what is open now. Later connections work."""
        self._stranded.append(self._flows)
        self._flows.clear()
        self._flows = threading.Event()
        self._flows.set()

    def cut(self) -> None:
        """End every open connection in the middle of what it carries."""
        opened, self._open = self._open, []
        for each in opened:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def leave(self) -> None:
        """End every connection, and each later one at once."""
        self._away = True
        self.cut()

    def come_back(self) -> None:
        """Take connections again."""
        self._away = False

    def close(self) -> None:
        self._listener.close()
        for each in (*self._stranded, self._flows):
            each.set()
        self.cut()
        self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                if self._away:
                    client.close()
                    continue
                server = socket.create_connection((self._server["host"], int(self._server["port"])))
            except OSError:
                return
            self._open += [client, server]
            for source, target in ((client, server), (server, client)):
                pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(HELD_PIECES)
                threading.Thread(target=self._take, args=(source, pieces), name="link", daemon=True).start()
                threading.Thread(target=self._hand_on, args=(target, pieces, self._flows), name="link", daemon=True).start()

    def _take(self, source: socket.socket, pieces: "queue.Queue[tuple[float, bytes]]") -> None:
        data = b"."
        while data and source.fileno() >= 0:
            try:
                data = source.recv(PIECE_BYTES)
            except OSError:
                data = b""
            with contextlib.suppress(queue.Full):  # the other side is gone: nothing reads it
                pieces.put((time.monotonic() + self._delay, data), timeout=LOST_SECONDS)

    def _hand_on(self, target: socket.socket, pieces: "queue.Queue[tuple[float, bytes]]", flows: threading.Event) -> None:
        while True:
            due, data = pieces.get()
            time.sleep(max(0.0, due - time.monotonic()))
            flows.wait()
            self.carried += len(data)
            try:
                if data:
                    target.sendall(data)
                else:
                    target.shutdown(socket.SHUT_WR)
            except OSError:
                data = b""
            if not data:
                return


@contextlib.contextmanager
def unix_link(url: str) -> Iterator[Link]:
    with contextlib.closing(Link(url)) as link:
        yield link


@contextlib.contextmanager
def slow_link(url: str) -> Iterator[Link]:
    with contextlib.closing(Link(url, delay=0.02)) as link:
        yield link


@contextlib.contextmanager
def deaf_server() -> Iterator[str]:
    """Accept connections and never answer. Yields its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(os.cpu_count() or 1)
        yield f"postgresql://a:b@127.0.0.1:{listener.getsockname()[1]}/c"


class HoldingBack:
    """A relay in a process of its own: from `hold` to `release`, the last six bytes of each answer stay with it."""

    def __init__(self, url: str) -> None:
        server = address.parse(url)
        command = [sys.executable, "-c", HOLDING_BACK, server["host"], server["port"]]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = address.conninfo({**server, "port": self._process.stdout.readline().decode().strip()})

    def hold(self) -> None:
        self._tell(b"h")

    def release(self) -> None:
        self._tell(b"r")

    def _tell(self, word: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word)
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
