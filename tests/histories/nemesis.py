"""The nemesis: kills, stops, cut connections, crashes of the server; drawn from a seed, recorded, bounded.

The kinds are drawn from a deck that is reshuffled when it is used up, so each comes soon.
"""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import sqlalchemy

from tests.faults import CrashServer
from tests.histories.crew import LOOK_SECONDS, WITH_ID, Crew, Process
from tests.histories.history import NEMESIS, Recorder, Result

KILLS: Final = ("kill", "kill", "kill", "zombie", "zombie", "stop", "terminate", "terminate", "crash", "quiet crash")
SHORT: Final = (*KILLS, "block")  # for a short run
LONG: Final = (*KILLS, "block", "freeze", "slow")
# COMMITs wait for a missing standby; each flush takes 5 ms, as on a disk in a network.
BLOCKED: Final = {"synchronous_standby_names": "away"}
SLOW: Final = {"fsync": "on", "commit_delay": "5000", "commit_siblings": "0"}
BACKENDS: Final = """
    select pid from pg_stat_activity where datname = %s and backend_type = 'client backend' order by backend_start, pid
"""


class Nemesis:
    """Disturbs a crew and its server. `mean_seconds`: between two blows."""

    def __init__(
        self,
        crew: Crew,
        server: CrashServer,
        recorder: Recorder,
        *,
        mean_seconds: float,
        block_seconds: float,
        kinds: Sequence[str],
    ) -> None:
        self._crew = crew
        self._server = server
        self._recorder = recorder
        self._random = random.Random(f"{crew.seed} {NEMESIS}")
        self._mean_seconds = mean_seconds
        self._block_seconds = block_seconds
        self._ending: list[tuple[float, Callable[[], None]]] = []  # what is to end, and when
        self._kinds = kinds
        self._deck: list[str] = []
        self._sleeping: list[tuple[float, Process]] = []  # until when
        self._frozen: list[int] = []
        self._set_now: list[str] = []
        self.counts: Counter[str] = Counter()

    def disturb(self, seconds: float) -> None:
        """Strike repeatedly for `seconds`; a worker that ends meanwhile gets a successor."""
        deadline = time.monotonic() + seconds
        next_blow = time.monotonic() + self._mean_seconds
        while (now := time.monotonic()) < deadline or self._ending:
            self._crew.tend()
            self._end(now)
            self._wake(now)
            if now >= next_blow and now < deadline:
                self._strike()
                next_blow = time.monotonic() + self._random.uniform(0.5, 1.5) * self._mean_seconds
            time.sleep(LOOK_SECONDS)
        self._calm()

    def _calm(self) -> None:
        """Resume all stopped workers, and record it."""
        self._wake(float("inf"))
        self._crew.bury()

    def settle(self) -> None:
        """Wait for work that must be done before workers are asked to end; in a history they finish it by themselves."""

    def _end(self, now: float) -> None:
        for entry in list(self._ending):
            if entry[0] <= now:
                self._ending.remove(entry)
                entry[1]()

    def _strike(self) -> None:
        if not self._deck:
            self._deck = list(self._kinds)
            self._random.shuffle(self._deck)
        kind = self._deck.pop()
        self.counts[kind] += self._blows()[kind]()

    def _blows(self) -> dict[str, Callable[[], bool]]:
        return {
            "kill": self._kill,
            "zombie": self._zombie,
            "stop": self._stop,
            "terminate": self._terminate,
            "crash": self._crash,
            "quiet crash": self._quiet_crash,
            "block": self._block,
            "freeze": self._freeze,
            "slow": self._slow,
        }

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
        """Cut some connections, whatever they are doing."""
        database = sqlalchemy.make_url(self._crew.url).database
        with self._server.server.administrator() as connection:
            there = [pid for (pid,) in connection.execute(BACKENDS, [database]).fetchall()]
            chosen = self._random.sample(there, min(len(there), self._random.choice((1, 3, 10))))
            note = self._recorder.invoke("terminate", backends=len(chosen))
            for pid in chosen:
                connection.execute("select pg_terminate_backend(%s)", [pid])
            self._recorder.complete(Result.OK, note)
        return bool(chosen)

    def _block(self) -> bool:
        """No COMMIT is answered for a while."""
        return self._set("block", BLOCKED, self._block_seconds)

    def _slow(self) -> bool:
        return self._set("slow", SLOW, self._random.uniform(1.0, 3.0))

    def _set(self, kind: str, settings: Mapping[str, str], seconds: float) -> bool:
        """Change the server's settings for `seconds`."""
        if any(kind == other for other in self._set_now):
            return False
        before: dict[str, str] = {}
        note = self._recorder.invoke(kind, settings=dict(settings))
        self._set_now.append(kind)
        with self._server.server.administrator() as connection:
            for name, value in settings.items():
                ((before[name],),) = connection.execute("select current_setting(%s)", [name]).fetchall()
                connection.execute(f"alter system set {name} = '{value}'")
            connection.execute("select pg_reload_conf()")

        def reset() -> None:
            with self._server.server.administrator() as administrator:
                for name, value in before.items():
                    administrator.execute(f"alter system set {name} = '{value}'")
                administrator.execute("select pg_reload_conf()")
            self._set_now.remove(kind)
            self._recorder.complete(Result.OK, note)

        self._ending.append((time.monotonic() + seconds, reset))
        return True

    def _freeze(self) -> bool:
        """Stop a process of the server, whatever it holds."""
        database = sqlalchemy.make_url(self._crew.url).database
        with self._server.server.administrator() as connection:
            there = [pid for (pid,) in connection.execute(BACKENDS, [database]).fetchall()]
        if not there or self._frozen:
            return False
        pid = self._random.choice(there)
        note = self._recorder.invoke("freeze")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self._frozen.append(pid)

        def thaw() -> None:
            self._thaw()
            self._recorder.complete(Result.OK, note)

        self._ending.append((time.monotonic() + self._random.uniform(0.2, 2.0), thaw))
        return True

    def _thaw(self) -> None:
        while self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._frozen.pop(), signal.SIGCONT)

    def _crash(self) -> bool:
        self._thaw()  # otherwise the server waits for it
        note = self._recorder.invoke("crash")
        self._server.kill()
        self._server.start()
        self._recorder.complete(Result.OK, note)
        return True

    def _quiet_crash(self) -> bool:
        """Crash while a single process writes: what it has not flushed is really lost, as no other process flushes."""
        writing = self._crew.choose(self._random, WITH_ID)
        others = [process for process in self._crew.everybody() if process is not writing and not process.stopped]
        for process in others:
            self._signal("pause", process, signal.SIGSTOP)
        time.sleep(self._random.uniform(0.02, 0.3))
        done = self._crash()
        for process in others:
            self._signal("resume", process, signal.SIGCONT)
        return done
