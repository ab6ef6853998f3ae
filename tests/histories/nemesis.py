"""The nemesis: kills, stops, cuts connections, crashes the server; drawn from a seed, noted, bounded.

The kinds come from a deck that is shuffled again when it is used up, so that each comes soon.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import sqlalchemy

from tests.faults import CrashServer
from tests.histories.crew import LOOK_SECONDS, WITH_ID, Crew, Process
from tests.histories.history import NEMESIS, Recorder, Result

KINDS: Final = ("kill", "zombie", "stop", "terminate", "crash", "quiet crash")
DECK: Final = ("kill", "kill", "kill", "zombie", "zombie", "stop", "terminate", "terminate", "crash", "quiet crash")
BACKENDS: Final = """
    select pid from pg_stat_activity where datname = %s and backend_type = 'client backend' order by backend_start, pid
"""


class Nemesis:
    """Disturbs a crew and its server. `mean_seconds`: between two blows."""

    def __init__(self, crew: Crew, server: CrashServer, recorder: Recorder, *, mean_seconds: float) -> None:
        self._crew = crew
        self._server = server
        self._recorder = recorder
        self._random = random.Random(f"{crew.seed} {NEMESIS}")
        self._mean_seconds = mean_seconds
        self._deck: list[str] = []
        self._sleeping: list[tuple[float, Process]] = []  # until when
        self.counts: Counter[str] = Counter()

    def disturb(self, seconds: float) -> None:
        """Strike again and again for so many seconds; whatever ends meanwhile gets its successor."""
        deadline = time.monotonic() + seconds
        next_blow = time.monotonic() + self._mean_seconds
        while (now := time.monotonic()) < deadline:
            self._crew.tend()
            self._wake(now)
            if now >= next_blow:
                self._strike()
                next_blow = time.monotonic() + self._random.uniform(0.5, 1.5) * self._mean_seconds
            time.sleep(LOOK_SECONDS)
        self._wake(float("inf"))
        self._crew.bury()

    def _strike(self) -> None:
        if not self._deck:
            self._deck = list(DECK)
            self._random.shuffle(self._deck)
        kind = self._deck.pop()
        strike: dict[str, Callable[[], bool]] = {
            "kill": self._kill,
            "zombie": self._zombie,
            "stop": self._stop,
            "terminate": self._terminate,
            "crash": self._crash,
            "quiet crash": self._quiet_crash,
        }
        self.counts[kind] += strike[kind]()

    def _kill(self) -> bool:
        return self._signal("kill", self._crew.choose(self._random), signal.SIGKILL)

    def _zombie(self) -> bool:
        """Stop a process, and let its successor begin meanwhile."""
        process = self._crew.choose(self._random, WITH_ID)
        if process is None or not self._signal("pause", process, signal.SIGSTOP):
            return False
        self._crew.succeed(process)
        self._sleeping.append((time.monotonic() + self._random.uniform(0.5, 4.0), process))
        return True

    def _stop(self) -> bool:
        process = self._crew.choose(self._random)
        if process is None or not self._signal("pause", process, signal.SIGSTOP):
            return False
        self._sleeping.append((time.monotonic() + self._random.uniform(0.1, 2.0), process))
        return True

    def _wake(self, now: float) -> None:
        for entry in list(self._sleeping):
            until, process = entry
            if until <= now:
                self._sleeping.remove(entry)
                self._signal("resume", process, signal.SIGCONT)

    def _signal(self, kind: str, process: Process | None, number: signal.Signals) -> bool:
        if process is None:
            return False
        note = self._recorder.invoke(kind, whom=process.life.process)
        process.signal(number)
        self._recorder.complete(Result.OK, note)
        return True

    def _terminate(self) -> bool:
        """Cut some connections, whatever is going on there."""
        database = sqlalchemy.make_url(self._crew.url).database
        with self._server.server.administrator() as connection:
            there = [pid for (pid,) in connection.execute(BACKENDS, [database]).fetchall()]
            chosen = self._random.sample(there, min(len(there), self._random.choice((1, 3, 10))))
            note = self._recorder.invoke("terminate", backends=len(chosen))
            for pid in chosen:
                connection.execute("select pg_terminate_backend(%s)", [pid])
            self._recorder.complete(Result.OK, note)
        return bool(chosen)

    def _crash(self) -> bool:
        note = self._recorder.invoke("crash")
        self._server.kill()
        self._server.start()
        self._recorder.complete(Result.OK, note)
        return True

    def _quiet_crash(self) -> bool:
        """Crash while a single process writes: what it has not flushed is really lost, as nobody else flushes either."""
        writing = self._crew.choose(self._random, WITH_ID)
        others = [process for process in self._crew.everybody() if process is not writing and not process.stopped]
        for process in others:
            process.signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.02, 0.3))
        done = self._crash()
        for process in others:
            process.signal(signal.SIGCONT)
        return done
