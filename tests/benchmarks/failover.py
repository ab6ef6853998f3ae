"""R15: from a promotion to the first answer, for each kind of client; and what a synchronous standby costs.

A pair of servers of its own on the disk, of which the primary is killed again and again under one client of each kind; the
same under Patroni, if that and its etcd are there (`make test-patroni`). What the clients did is judged at the end.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgtx
from tests.benchmarks.sheet import Claim, Rounds, Settings, progress
from tests.failovers.clients import KINDS, Clients
from tests.failovers.servers import Servers, servers
from tests.faults import crash_server
from tests.histories.anomalies import summary
from tests.patroni.cluster import Cluster, missing, patroni

PROMOTIONS = 20
ELECTIONS = 10  # each takes the twenty seconds for which a dead leader stays the leader
TRANSACTION_SECONDS = 0.1
SMALL_BATCH = 100  # records at a time, of a long transaction


def failover(settings: Settings) -> list[dict[str, object]]:
    """Kill primaries, and measure the gaps; then alternate a pair with and without a synchronous standby."""
    rounds = Rounds()
    with _on_disk() as folder, servers(2, folder) as pair:
        _promotions(pair, rounds)
    claims = _claims("promotion", "pair: from promotion to first answer")
    with _on_disk() as folder, servers(2, folder) as pair:
        _synchronous(pair, rounds, settings)
    for shape in ("one record", "100 ms"):
        what = f"transactions of {shape}, with a synchronous standby ÷ without one that is waited for"
        claims.append(Claim(target="R15", what=what, unit="rec/s", value=f"{shape}, synchronous", base=f"{shape}, alone"))
    if lacking := missing():
        progress(f"{lacking}: the gaps under Patroni are left out")
    else:
        with patroni() as (cluster, server):
            _elections(cluster, server.create_database(), rounds)
        claims += _claims("election", "Patroni: from its promotion to first answer")
        claims += _claims("kill", "Patroni: from kill to first answer")
        claims.append(Claim(target="R15", what="Patroni: from kill to its promotion", unit="s", value="until promotion"))
    return rounds.judge(claims)


def _claims(name: str, what: str) -> list[Claim]:
    return [Claim(target="R15", what=f"{what}, {kind}", unit="s", value=f"{name} {kind}") for kind in KINDS]


@contextmanager
def _on_disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="msgtx-failovers-", dir="/var/tmp"))
    folder.chmod(0o755)  # as root, the server's user must get in
    yield folder


@contextmanager
def _clients(url: str) -> Iterator[Clients]:
    """Run one client of each kind, and judge what they did."""
    with crash_server() as other, tempfile.TemporaryDirectory(prefix="msgtx-failovers-") as folder:
        clients = Clients(url, other.server.create_database(), Path(folder))
        try:
            clients.start()
            yield clients
            clients.finish()
            found = clients.judge()
            assert not found, "\n".join(summary(found))
        finally:
            clients.close()


def _promotions(pair: Servers, rounds: Rounds) -> None:
    with _clients(pair.on_all(pair.server.create_database())) as clients:
        for number in range(PROMOTIONS):
            (standby,) = pair.standbys
            pair.confirm_by("", standby)  # it will be alone
            old = pair.kill()
            _note(clients, rounds, "promotion", since=pair.promote())
            pair.rejoin(old)
            pair.confirm_by(f"ANY 1 ({old})")
            clients.await_answers(time.monotonic_ns())
            progress(f"promotion {number + 1}/{PROMOTIONS}")
    _show(rounds, "promotion")


def _elections(cluster: Cluster, url: str, rounds: Rounds) -> None:
    with _clients(cluster.on_all(url)) as clients:
        for number in range(ELECTIONS):
            leader = cluster.await_health()
            clients.await_answers(time.monotonic_ns())
            killed = time.monotonic_ns()
            cluster.kill(leader)
            promoted = cluster.await_promotion(other_than=leader)
            rounds.add("until promotion", (promoted - killed) / 1e9)
            _note(clients, rounds, "election", since=promoted)
            _note(clients, rounds, "kill", since=promoted, begun=killed)
            cluster.restart(leader)
            progress(f"election {number + 1}/{ELECTIONS}")
        cluster.await_health()
    for name in ("election", "kill"):
        _show(rounds, name)


def _note(clients: Clients, rounds: Rounds, name: str, *, since: int, begun: int | None = None) -> None:
    """Note how long each kind has waited for its first answer after `since`, from `begun`."""
    before = (since - (begun or since)) / 1e9
    for kind, seconds in clients.await_answers(since).items():
        rounds.add(f"{name} {kind}", before + seconds)


def _show(rounds: Rounds, name: str) -> None:
    """Print the median, the 90th percentile and the longest gap of each kind, in seconds."""
    for kind in KINDS:
        values = sorted(rounds.series[f"{name} {kind}"])
        p90 = values[math.ceil(0.9 * len(values)) - 1]
        progress(f"{name}, {kind}: {statistics.median(values):.2f} {p90:.2f} {values[-1]:.2f} (n = {len(values)})")


def _synchronous(pair: Servers, rounds: Rounds, settings: Settings) -> None:
    (standby,) = pair.standbys
    with msgtx.connect(pair.server.create_database()) as client:
        client.topics.create("t")
        with client.producer(transactional_id="r15") as producer:

            def one_record() -> int:
                with producer.transaction():
                    producer.send("t", b"x" * 100)
                return 1

            def long() -> int:
                sent, end = 0, time.perf_counter() + TRANSACTION_SECONDS
                with producer.transaction():
                    while time.perf_counter() < end:
                        producer.send_batch("t", [b"x" * 100] * SMALL_BATCH, partition=0)
                        sent += SMALL_BATCH
                return sent

            def rate(transaction: Callable[[], int], names: str) -> float:
                pair.confirm_by(names)
                sent, began = 0, time.perf_counter()
                while (took := time.perf_counter() - began) < settings.seconds:
                    sent += transaction()
                return sent / took

            steps = {
                f"{shape}, {kind}": partial(rate, transaction, names)
                for shape, transaction in (("one record", one_record), ("100 ms", long))
                for kind, names in (("synchronous", f"ANY 1 ({standby})"), ("alone", ""))
            }
            rounds.run(steps, rounds=settings.rounds)
