"""The workers' processes: started, watched, followed by a successor when one ends.

They are forked from multiprocessing's server, which has everything imported: a life begins in milliseconds, not in a
second of imports, so many lives fit into a minute.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.histories.workers import AGAIN, COORDINATOR, FENCED, Life, live

# Workers with a transactional id: a successor may begin while one is stopped, and makes it a zombie.
WITH_ID: Final = frozenset({"copy", "writer", "late", "seals", "relay"})
WRITERS: Final = frozenset({"writer", "plain", "loose", "meddler", "publisher", "bounded", "low", "wide", "keyed"})
MEMBERS: Final = frozenset({"copy", "late", "seals", "tally", "relay"})
# Workers that end only when asked to: nothing that is done to others ends them.
STEADY: Final = frozenset({"relay"})
READERS: Final = frozenset({"reader", "dirty", "hopper", "view"})
TIDIERS: Final = frozenset({"sweeper", COORDINATOR})
SMALL: Final = {
    "copy": 3, "writer": 2, "plain": 1, "loose": 1, "reader": 1, "dirty": 1, "hopper": 1, "view": 1, "meddler": 1,
    "sweeper": 1, COORDINATOR: 1,
}  # fmt: skip
GUESTS: Final = {"tally": 2, "late": 1, "seals": 2, "publisher": 2, "bounded": 1, "low": 1}
LARGE: Final = {**SMALL, **GUESTS, "writer": 3, "plain": 2, COORDINATOR: 2}
WIDE: Final = {**LARGE, "wide": 1}
GROUP: Final = {"keyed": 1, "relay": 6, COORDINATOR: 1}
LOOK_SECONDS: Final = 0.02
NO_DATABASE, INTERRUPTED = 3, 130  # exit codes of the command line
BEGIN_SECONDS: Final = 90.0  # until all workers work, on a busy machine
FINISH_SECONDS: Final = 90.0  # until all workers that were asked to end have ended: otherwise one is stuck
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.histories.workers"])


class NotBegunError(Exception):
    """Some workers did not begin: a round without them would check nothing of what they do."""


class Process:
    """One life of a worker, as its parent sees it."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.stopped = False
        self.ends: set[int] = set()  # exit codes with which it may end, by the signals sent
        self._child = _forks.Process(target=live, args=(life,), daemon=True)
        self._child.start()
        # A handle, not a number: an ended process's number may belong to another one.
        with contextlib.suppress(ProcessLookupError):
            self._handle: int | None = os.pidfd_open(self._child.pid or 0)

    @property
    def code(self) -> int | None:
        """How it ended: 0 or more, minus a signal, or None."""
        return self._child.exitcode

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def said(self) -> str:
        """Its stderr."""
        return self.life.errors.read_text(errors="replace").strip() if self.life.errors.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        if number in {signal.SIGKILL, signal.SIGTERM}:
            self.ends.add(-number if number == signal.SIGKILL else 0)
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
        if number in {signal.SIGSTOP, signal.SIGCONT}:
            self.stopped = number is signal.SIGSTOP

    def close(self) -> None:
        """Wait for its end."""
        self._child.join()
        self._child.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


@dataclass
class Crew:
    """All workers of a round. `failures`: messages about what should never happen."""

    url: str
    folder: Path
    seed: int
    roles: dict[str, int]
    pace: float = 0.02
    low_url: str = ""
    living: dict[str, Process] = field(default_factory=dict)
    zombies: list[Process] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    finishing: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)  # workers without a successor
    lives: Counter[str] = field(default_factory=Counter)  # of each worker, so far
    codes: Counter[int] = field(default_factory=Counter)  # how lives have ended

    def start(self) -> None:
        """Start the first or next life of every worker, and wait until all work. Raise `NotBegunError` if some do not."""
        for role, count in self.roles.items():
            for index in range(count):
                self._begin(role, index)
        deadline = time.monotonic() + BEGIN_SECONDS
        while waiting := [process for process in self.living.values() if not process.life.began]:
            self.tend()
            if time.monotonic() > deadline:
                told = "; ".join(f"{process.life.process} {process.said[-500:]}".strip() for process in waiting)
                raise NotBegunError(f"not at work within {BEGIN_SECONDS:g} s: {told}")
            time.sleep(LOOK_SECONDS)

    def _begin(self, role: str, index: int) -> None:
        life = Life(role, f"{role}-{index}", 0, self.url, str(self.folder), self.seed, self.pace)
        self._live(replace(life, low_url=self.low_url))

    def join(self, role: str) -> None:
        """Start a new worker."""
        self._begin(role, sum(name.rpartition("-")[0] == role for name in self.lives))

    def leave(self, process: Process, number: signal.Signals) -> None:
        """End a worker for good."""
        self.leaving.add(process.life.name)
        process.signal(number)

    def _live(self, life: Life) -> None:
        life = replace(life, life=self.lives[life.name], finish=life.role in self.finishing)
        self.lives[life.name] += 1
        self.living[life.name] = Process(life)

    def succeed(self, process: Process) -> None:
        """Start a worker's next life while the present one lasts: two now have the same transactional id."""
        process.ends.add(FENCED)
        self.zombies.append(process)
        self._live(process.life)

    def tend(self) -> None:
        """Check all workers: one that has ended gets its next life, unless it has finished."""
        for zombie in [process for process in self.zombies if process.code is not None]:
            self.zombies.remove(zombie)
            self._judge(zombie)
        for name, process in [found for found in self.living.items() if found[1].code is not None]:
            del self.living[name]
            finished = process.code == 0 and process.life.role in self.finishing
            if not finished and name not in self.leaving:
                self._live(process.life)
            self._judge(process)

    def _judge(self, process: Process) -> None:
        expected = {0, FENCED, AGAIN, -signal.SIGKILL, -signal.SIGTERM}
        if process.life.role == COORDINATOR:
            expected |= {NO_DATABASE, INTERRUPTED}
        if process.life.role in STEADY:
            expected = process.ends
        assert process.code is not None
        self.codes[process.code] += 1
        if process.code not in expected or (process.life.role in STEADY and "Traceback" in process.said):
            self.failures.append(f"{process.life.process} ended with {process.code}: {process.said[-1500:]}")
        process.close()

    def choose(self, chance: random.Random, roles: Collection[str] | None = None) -> Process | None:
        """Draw a worker that runs now."""
        names = [name for name, process in sorted(self.living.items())
                 if not process.stopped and (roles is None or process.life.role in roles)]  # fmt: skip
        return self.living[chance.choice(names)] if names else None

    def everybody(self) -> list[Process]:
        return [*self.living.values(), *self.zombies]

    def finish(self, roles: Collection[str]) -> None:
        """Ask these to finish and wait until they, and all zombies, have ended."""
        self.finishing |= set(roles)
        for process in self.everybody():
            process.signal(signal.SIGCONT)
            if process.life.role in roles:
                process.signal(signal.SIGTERM)
        self.wait_for(lambda: not any(process.life.role in roles for process in self.everybody()), f"{sorted(roles)} end",
                    FINISH_SECONDS)  # fmt: skip

    def bury(self) -> None:
        """Wait until every zombie has learned of its successor."""
        self.wait_for(lambda: not self.zombies, "the zombies end", FINISH_SECONDS)

    def lost(self) -> int:
        """Return how many lives of relays have learned that they had lost partitions."""
        return sum(
            "were taken from this member" in path.read_text(errors="replace") for path in self.folder.glob("relay-*.stderr")
        )

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Tend all workers until the condition holds. After `seconds` that is a failure, and all workers are ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.tend()
            if time.monotonic() > deadline:
                there = [process.life.process for process in self.everybody()]
                self.failures.append(f"not within {seconds:g} s: {what}; there are {there}")
                self.end(self.finishing)
                return
            time.sleep(LOOK_SECONDS)

    def end(self, roles: Collection[str] | None = None) -> None:
        """Kill workers of these roles (None: all), without successors."""
        gone = [process for process in self.everybody() if roles is None or process.life.role in roles]
        for process in gone:
            process.signal(signal.SIGKILL)
            process.close()
        self.zombies = [process for process in self.zombies if process not in gone]
        self.living = {name: process for name, process in self.living.items() if process not in gone}
