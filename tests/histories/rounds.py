"""A round: a fresh database, a crew, a nemesis, the end, the checker."""

import shutil
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgtx
from tests.databases import connect
from tests.faults import CrashServer
from tests.histories.anomalies import Anomaly, Name
from tests.histories.checker import check
from tests.histories.committed import BACKWARDS
from tests.histories.crew import MEMBERS, READERS, SMALL, TIDIERS, WRITERS, Crew
from tests.histories.history import NEMESIS, History, Recorder, read_history
from tests.histories.neighbours import OWN
from tests.histories.nemesis import SHORT, Nemesis
from tests.histories.settled import settled
from tests.histories.workers import BESIDE, PARTITIONS, RELAYS, TOPICS, WIDELY
from tests.roles import Roles
from tests.verdicts import Verdict

# Shards are to move between daemons within a round.
SETTINGS: Final = {"lease_ms": 1_500, "sweep_interval_ms": 200}
# Transactions are forgotten within a round, and ids that are idle for that long.
PURGING: Final = {
    "transaction_history_ms": 3_000,
    "transactional_id_expiration_ms": 3_000,
    "producer_id_expiration_ms": 3_000,
}


@dataclass(frozen=True)
class Report:
    """What a round did and found. `failures`: processes that ended in a way that they never should."""

    seed: int
    anomalies: Sequence[Anomaly]
    failures: Sequence[str]
    operations: Counter[str]
    results: Counter[str]
    blows: Counter[str]
    lives: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        if self.anomalies:
            return Verdict.ANOMALY
        return Verdict.ENDED_BADLY if self.failures else Verdict.CLEAN

    @property
    def checked(self) -> int:
        """Records sent, records polled, and every other operation of a client: each as one."""
        return sum(self.operations.values())


class Round:
    """One round on a server that may crash. Its parts can be called one by one, with other actions in between."""

    def __init__(
        self,
        server: CrashServer,
        folder: Path,
        *,
        seed: int,
        roles: Mapping[str, int] = SMALL,
        pace: float = 0.02,
        blow_seconds: float = 1.0,
        block_seconds: float = 2.0,
        kinds: Sequence[str] = SHORT,
        purging: bool = False,
        nemesis: type[Nemesis] = Nemesis,
    ) -> None:
        self.seed = seed
        self.purging = purging
        self.folder = folder
        self.url = server.server.create_database()
        self._server = server
        with connect(self.url) as connection:
            for name, value in {**SETTINGS, **(PURGING if purging else {})}.items():
                connection.execute("update msgtx.setting set value = %s where name = %s", [value, name])
        with msgtx.connect(self.url) as client:
            for name, count in (*TOPICS.items(), *(beside for role, beside in BESIDE.items() if role in roles)):
                client.topics.create(name, partitions=count)
        self.partitions = [*PARTITIONS, *(WIDELY if "wide" in roles else ()), *(RELAYS if "relay" in roles else ())]
        self._roles = Roles(server.server, self.url)
        # A process that applies a replication may skip triggers: a user's session may be one.
        self._roles.sql(f"grant set on parameter session_replication_role to {server.server.role}")
        low = self._roles.make(f"consume:{OWN}")
        self.crew = Crew(self.url, folder, seed, dict(roles), pace, self._roles.url_of(low))
        self.nemesis = nemesis(
            self.crew, server, Recorder(folder, NEMESIS), mean_seconds=blow_seconds, block_seconds=block_seconds,
            kinds=kinds,
        )  # fmt: skip

    def disturb(self, seconds: float) -> None:
        """Let all workers work, disturbed."""
        self.crew.start()
        self.nemesis.disturb(seconds)

    def drain(self) -> None:
        """Let all workers finish, undisturbed: first writers, then copy jobs, then readers."""
        self.crew.finish(WRITERS)
        self.nemesis.settle()
        for roles in (MEMBERS, READERS, TIDIERS):
            self.crew.finish(roles)

    def judge(self, *, ignored: Collection[str] = ()) -> Report:
        """Read what was recorded and what is stored, and compare. `ignored`: values that no worker has sent."""
        history = read_history(self.folder)
        groups = dict.fromkeys(groups_of(history), self.partitions)
        with msgtx.connect(self.url) as client:
            end = settled(client, history, partitions=self.partitions, groups=groups, purged=self.purging)
        found = [anomaly for anomaly in check(history, end) if not any(value in anomaly.detail for value in ignored)]
        return Report(self.seed, found, self.crew.failures, history.counts(), history.results(), self.nemesis.counts,
                      self.crew.lives.total())  # fmt: skip

    def close(self) -> None:
        self.crew.end()
        self._roles.drop()
        self._server.drop_database(self.url)


def groups_of(history: History) -> set[str]:
    """Return the groups that copy, or commit with members: readers' groups are not checked."""
    of_transactions = {commit.arguments["group"] for commit in history.kind("commit")}
    of_members = {close.arguments["group"] for close in history.kind("close") if close.arguments["reset"] != BACKWARDS}
    return (of_transactions | of_members) - {None}


def play(server: CrashServer, folder: Path, *, seed: int, seconds: float, **options: object) -> Report:
    """Play a whole round. Its files stay in the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    spent: dict[str, float] = {}
    began = time.monotonic()
    round_ = Round(server, folder, seed=seed, **options)  # type: ignore[arg-type]
    try:
        for name, part in (("disturbed", lambda: round_.disturb(seconds)), ("drained", round_.drain)):
            part()
            spent[name] = time.monotonic() - began - sum(spent.values())
        report = round_.judge()
        report.seconds.update(spent, judged=time.monotonic() - began - sum(spent.values()))
        return report
    finally:
        round_.close()


__all__ = ["Anomaly", "Name", "Report", "Round", "play"]
