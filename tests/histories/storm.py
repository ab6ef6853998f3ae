"""A storm: relays of one group come and go, are killed and stopped, while keyed input arrives; the server is left alone.

A relay ends only in the way that it was ended, and every input is copied soon after the last blow.
"""

import signal
import time
from collections.abc import Callable
from typing import Final

import msgtx
from tests.histories.crew import LOOK_SECONDS, Process
from tests.histories.history import Result
from tests.histories.nemesis import Nemesis
from tests.histories.relays import PATIENCE_SECONDS, RELAY_GROUP, RELAYED, SESSION_TIMEOUT_MS, relay
from tests.histories.workers import RELAYS

ROLE: Final = relay.__name__
LEAST, MOST = 3, 8  # relays at a time
DECK: Final = ("kill", "kill", "replace", "replace", "zombie", "absent", "absent", "leave", "leave", "join")


class Storm(Nemesis):
    """Strikes at relays that are members of their group. `kill` and `zombie` have a successor with the same id."""

    def _blows(self) -> dict[str, Callable[[], bool]]:
        return {
            "kill": self._kill,
            "replace": self._replace,
            "zombie": self._zombie,
            "absent": self._absent,
            "leave": self._leave,
            "join": self._join,
        }

    def members(self) -> set[int]:
        """Return the process numbers of the group's members."""
        with msgtx.connect(self._crew.url) as client:
            return {found.client_process for found in client.admin.groups.members(RELAY_GROUP) if found.client_process}

    def relays(self) -> list[Process]:
        """Return all relays that have not ended, also those that are asked to."""
        return [process for process in self._crew.everybody() if process.life.role == ROLE and process.code is None]

    def _at_work(self) -> list[Process]:
        members = self.members()
        return [each for each in self.relays() if not each.stopped and not each.ends and each.pid in members]

    def _strike(self) -> None:
        if len(self._at_work()) > LEAST:
            super()._strike()
        elif len(self.relays()) < MOST:  # the next kind has to wait
            self.counts["join"] += self._join()

    def _victim(self) -> Process:
        return self._random.choice(self._at_work())

    def _kill(self) -> bool:
        return self._signal("kill", self._victim(), signal.SIGKILL)

    def _replace(self) -> bool:
        """Kill a relay, and start one with another id."""
        victim = self._victim()
        self._crew.leaving.add(victim.life.name)
        self._signal("kill", victim, signal.SIGKILL)
        return self._join()

    def _zombie(self) -> bool:
        """Stop a relay until its session is over, and let its successor begin meanwhile."""
        victim = self._victim()
        self._stand_still(victim)
        self._crew.succeed(victim)
        return True

    def _absent(self) -> bool:
        """Stop a relay until its session is over and others have its partitions; then resume it."""
        self._stand_still(self._victim())
        return True

    def _stand_still(self, victim: Process) -> None:
        self._signal("pause", victim, signal.SIGSTOP)
        self._sleeping.append((time.monotonic() + SESSION_TIMEOUT_MS / 1000, victim))

    def _leave(self) -> bool:
        """Ask a relay to end: it drains, and has no successor."""
        victim = self._victim()
        self._crew.leaving.add(victim.life.name)
        return self._signal("ask", victim, signal.SIGTERM)

    def _join(self) -> bool:
        if len(self.relays()) >= MOST:
            return False
        note = self._recorder.invoke("join")
        self._crew.join(ROLE)
        self._recorder.complete(Result.OK, note)
        return True

    def _wake(self, now: float) -> None:
        if not any(until <= now for until, _ in self._sleeping):
            return
        members = self.members()
        for entry in list(self._sleeping):
            until, process = entry
            if until <= now and (process.pid not in members or now > until + PATIENCE_SECONDS):
                self._sleeping.remove(entry)
                self._signal("resume", process, signal.SIGCONT)

    def _calm(self) -> None:
        """Resume all stopped relays, each once its session is over."""
        while self._sleeping:
            self._crew.tend()
            self._wake(time.monotonic())
            time.sleep(LOOK_SECONDS)
        self._crew.bury()

    def settle(self) -> None:
        """Wait until all input is copied, and all relays are members: one that is starting could not drain yet."""
        with msgtx.connect(self._crew.url) as client:
            self._crew.wait_for(lambda: _copied(client), "all input is copied", PATIENCE_SECONDS)
        self._crew.wait_for(lambda: {process.pid for process in self.relays()} <= self.members(), "all relays are members",
                            PATIENCE_SECONDS)  # fmt: skip


def _copied(client: msgtx.Client) -> bool:
    """Return whether the group is at the end of all input, and all outputs are decided, also those of killed relays."""
    ends = {partition: client.admin.partitions.describe(partition) for partition in RELAYS}
    with client.consumer(group=RELAY_GROUP, enable_auto_commit=False) as asking:
        stands = asking.committed([partition for partition in RELAYS if partition.topic == RELAYED])
    return all(end.last_stable_offset == end.log_end_offset for end in ends.values()) and all(
        (0 if at is None else at.offset) >= ends[partition].log_end_offset for partition, at in stands.items()
    )
