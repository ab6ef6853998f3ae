"""R3 on a disk that takes 5 ms for a flush, like a cloud's: whether commits share a flush or wait for each other."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import psycopg

from msgtx.cli.programs import perf
from msgtx.client import Client, connect
from msgtx.database import embedded
from tests.benchmarks import baselines
from tests.benchmarks.bulk import produced, ready
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step, progress

SESSIONS = 16
DELAY_MICROSECONDS = 5_000  # of commit_delay: every flush waits this long for others, which then need none of their own


def slow_flush(settings: Settings) -> list[dict[str, object]]:
    server = embedded.status()
    if server is None or settings.url != server.url:
        progress("changes settings of the server: for the embedded one only")
        return []
    rounds = Rounds()
    with ready(settings, pool_size=SESSIONS + 4) as client, slow(client):

        def transactions(producers: int) -> float:
            what = perf.ProduceSettings(
                seconds=settings.seconds, partitions=SESSIONS, producers=producers, transaction_records=1
            )
            return produced(client, what).transactions_per_second or 0.0

        steps: dict[str, Step] = {
            "plain commits 1": lambda: baselines.plain_commits(settings.url, connections=1, seconds=settings.seconds),
            "msgtx 1": lambda: transactions(1),
            "publish 1": lambda: published(client, 1, settings.seconds),
            "plain commits 16": lambda: baselines.plain_commits(
                settings.url, connections=SESSIONS, seconds=settings.seconds
            ),
            "msgtx 16": lambda: transactions(SESSIONS),
            "clients 16": lambda: of_clients(client, SESSIONS, settings.seconds),
            "publish 16": lambda: published(client, SESSIONS, settings.seconds),
        }
        rounds.run(steps, rounds=settings.rounds)
    names = {
        "msgtx 16": "16 transactional producers of a client",
        "clients 16": "16 transactional producers, a client each",
        "publish 16": "16 sessions, msgtx.publish, a topic each",
    }
    claims = [_claim(what, value, "plain commits 16", 0.5) for value, what in names.items()]
    claims += [_claim(f"1, {value}", value, "plain commits 1", None) for value in ("msgtx 1", "publish 1")]
    claims += [_claim("16 against 1", "publish 16", "publish 1", None), _claim("16 against 1", "msgtx 16", "msgtx 1", None)]
    return rounds.judge(claims)


def _claim(what: str, value: str, base: str, at_least: float | None) -> Claim:
    return Claim(target="R3, flush of 5 ms", what=what, unit="tx/s", value=value, base=base, at_least=at_least)


@contextlib.contextmanager
def slow(client: Client) -> Iterator[None]:
    """Make each flush take 5 ms, in new and old sessions."""
    with psycopg.connect(embedded.superuser_url(), autocommit=True) as administrator:

        def change(*statements: str) -> None:
            for statement in (*statements, "select pg_reload_conf()"):
                administrator.execute(statement)
            time.sleep(0.5)

        change(f"alter system set commit_delay = {DELAY_MICROSECONDS}", "alter system set commit_siblings = 0")
        try:
            yield
        finally:
            change("alter system reset commit_delay", "alter system reset commit_siblings")


def published(client: Client, sessions: int, seconds: float) -> float:
    """Publish in plain SQL, each session to a topic of its own. Returns commits/s."""

    def session(topic: str) -> tuple[Callable[[], object], Callable[[], None]]:
        connection = psycopg.connect(client.secret_url, autocommit=True)
        return lambda: connection.execute("select msgtx.publish(%s, 'x')", [topic]), connection.close

    return _rate(client, session, sessions, seconds)


def of_clients(client: Client, sessions: int, seconds: float) -> float:
    """Commit transactions of one record, each from a client and to a topic of its own. Returns commits/s."""

    def session(topic: str) -> tuple[Callable[[], object], Callable[[], None]]:
        other = connect(client.secret_url)
        producer = other.producer(transactional_id=topic)
        producer.init_transactions()

        def once() -> None:
            with producer.transaction():
                producer.send(topic, b"x")

        return once, other.close

    return _rate(client, session, sessions, seconds)


def _rate(
    client: Client, session: Callable[[str], tuple[Callable[[], object], Callable[[], None]]], sessions: int, seconds: float
) -> float:
    counts = [0] * sessions
    barrier = threading.Barrier(sessions)

    def run(at: int, topic: str) -> None:
        once, close = session(topic)
        once()
        barrier.wait()
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            once()
            counts[at] += 1
        close()

    with contextlib.ExitStack() as topics:
        names = [topics.enter_context(perf.temporary_topic(client, 1)) for _ in range(sessions)]
        threads = [threading.Thread(target=run, args=(at, name)) for at, name in enumerate(names)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(counts) / seconds
