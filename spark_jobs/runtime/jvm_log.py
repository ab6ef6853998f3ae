"""Warnings of `format("msgtx")`, and its words about outages, from Spark's Python workers into the user's log.

A worker writes on its JVM's stderr. If the user has started the JVM, this is the user's log. If we have, it is a file, and
its lines are handed on.
"""

import logging
import os
import re
import tempfile
import threading
from collections import deque
from typing import Final

from msgtx.database import outages

SPEAKER: Final = "msgtx: "
LINE: Final = re.compile(rb"msgtx: (WARNING|ERROR|INFO) (msgtx[\w.]*): (.*)")
TAIL_BYTES: Final = 16_384  # enough for the line that says why a start failed
LOOK_SECONDS: Final = 0.5
REMEMBERED: Final = 100  # texts, which come with each planning of a query


def speak_up() -> None:
    """Have lines say whose they are, if this is a worker of Spark's; in a program logging is the program's own."""
    logger = logging.getLogger("msgtx")
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER" and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"{SPEAKER}%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        outages.log.setLevel(logging.INFO)
        logger.propagate = False


class JvmLog:
    """The file into which a JVM writes. Its lines of msgtx go to this process's logging."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(prefix="msgtx-spark-")  # noqa: SIM115 - open as long as the JVM
        self._read = 0
        self._said: deque[bytes] = deque(maxlen=REMEMBERED)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="msgtx-spark-log", daemon=True)
        self._thread.start()

    def tail(self) -> str:
        """Return the end of the file."""
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")

    def close(self) -> None:
        """Hand on the rest, and remove the file."""
        self._closing.set()
        self._thread.join()
        self.file.close()

    def _follow(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            self._hand_on()
        self._hand_on()

    def _hand_on(self) -> None:
        # Not by the file's own position: that is where the JVM writes.
        while piece := os.pread(self.file.fileno(), TAIL_BYTES, self._read):
            lines = piece[: piece.rfind(b"\n") + 1] or (piece if len(piece) == TAIL_BYTES else b"")
            if not lines:
                return
            self._read += len(lines)
            for line in lines.splitlines():
                if (found := LINE.fullmatch(line)) and line not in self._said:
                    level, name, text = (each.decode(errors="replace") for each in found.groups())
                    self._said.append(line)
                    if level == "INFO":
                        self._said.clear()  # an outage is over: the next one may have the same words, and the same length
                    logging.getLogger(name).log(logging.getLevelNamesMapping()[level], "%s", text)
