"""Interleavings: a few actors, each paused at its boundaries, and every order of their steps tried.

An actor makes calls, each in a SQL transaction of its own, on a thread and a connection of its own. It pauses before each
call, before every advisory lock inside the call, and before COMMIT. The pauses inside are gates: in the database of the
test, each function of msgtx passes `weave.gate` before it takes an advisory lock: a wait for a lock that the weaver holds.
A gate names itself to its actor before it waits, so the weaver knows where that actor is without asking the server. What has
not named a gate that is held, and has not ended, may wait for another actor: `pg_blocking_pids` tells.

A schedule is a list of choices: whose step comes next. `explore` runs the first schedule to its end, then goes back to the
last choice that has an alternative, and so on; each schedule begins with a new story. With `--part` it plays only some of
them (tests/parts.py).
"""

import concurrent.futures
import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from psycopg.errors import Diagnostic

import msgtx
from msgtx import errors
from tests import parts
from tests.databases import PATIENCE_SECONDS, Connection, backend, connect, own_connection

GATE_CLASS: Final = 1_886_220_000  # the n-th gate of a SQL transaction is the lock (this + n, backend)
SAID: Final = "gate "  # how a gate names itself
LOOK_SECONDS: Final = 0.0005  # an actor gets this long to reach its gate or its end, before the server is asked about it
MOST: Final = 20_000  # schedules of one story
GATES: Final = 12  # that the weaver holds per actor: more than any call has locks
LOCKS: Final = re.compile(r"\b(pg_(?:try_)?advisory_xact_lock(?:_shared)?)\(")
# Between two statements of one function that see different snapshots, there is a gate, too.
STATEMENTS: Final = re.compile(
    r"^(?= +(?:insert into msgtx\.(?:partition_floor|group_heartbeat)|return query\n +select topic, place))", re.MULTILINE
)
SCHEMA: Final = """
create schema if not exists weave;
create or replace function weave.gate() returns void language plpgsql as $$
declare
    at int := coalesce(nullif(current_setting('weave.at', true), ''), '0')::int + 1;
begin
    perform set_config('weave.at', at::text, true);
    raise info 'gate %', at;
    perform pg_catalog.pg_advisory_xact_lock_shared({gate_class} + at, pg_backend_pid());
end $$;
create or replace function weave.pg_advisory_xact_lock(int, int) returns text language plpgsql as $$
begin perform weave.gate(); perform pg_catalog.pg_advisory_xact_lock($1, $2); return ''; end $$;
create or replace function weave.pg_advisory_xact_lock_shared(int, int) returns text language plpgsql as $$
begin perform weave.gate(); perform pg_catalog.pg_advisory_xact_lock_shared($1, $2); return ''; end $$;
create or replace function weave.pg_try_advisory_xact_lock(int, int) returns boolean language plpgsql as $$
begin perform weave.gate(); return pg_catalog.pg_try_advisory_xact_lock($1, $2); end $$;
create or replace function weave.pg_try_advisory_xact_lock_shared(int, int) returns boolean language plpgsql as $$
begin perform weave.gate(); return pg_catalog.pg_try_advisory_xact_lock_shared($1, $2); end $$;
"""


@dataclass(frozen=True)
class Call:
    """One call of an actor. It stops at its gates from `gate` on: 2 leaves out the one at the start.

    msgtx answers it, never PostgreSQL (40P01, a broken constraint); `may_time_out`: it may be told to call again.
    """

    name: str
    run: Callable[[Connection], Any]
    gate: int = 2
    may_time_out: bool = False


@dataclass
class Story:
    """What is played once per schedule: calls by actor, a check after each step, and one at the end."""

    actors: Mapping[str, Sequence[Call]]
    judge: Callable[["Played"], None]
    look: Callable[["Played"], None] = lambda played: None
    beside: Mapping[str, Connection] = field(default_factory=dict)  # another connection for an actor's calls, without gates


@dataclass
class Played:
    """How far a schedule has come: steps as `actor:where it stopped`, and the answers (or errors) of committed calls."""

    trace: list[str] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Actor:
    name: str
    calls: list[Call]
    connection: Connection
    thread: concurrent.futures.ThreadPoolExecutor
    held: set[int] = field(default_factory=set)
    said: list[int] = field(default_factory=list)  # the gates that this connection has come to
    beside: Connection | None = None
    running: "concurrent.futures.Future[Any] | None" = None
    paused_at: str = "start"  # start, gate, commit, lock (waits for another actor), end

    @property
    def pid(self) -> int:
        return backend(self.connection)

    @property
    def at_gate(self) -> bool:
        return bool(self.said) and self.said[-1] in self.held

    @property
    def ended(self) -> bool:
        return self.running is not None and self.running.done()

    @property
    def pids(self) -> list[int]:
        return [backend(each) for each in (self.connection, self.beside) if each is not None]


class Weaver:
    """Plays stories in one database, whose functions get gates."""

    def __init__(self, url: str, *, actors: int = 2, statements: re.Pattern[str] = STATEMENTS) -> None:
        self._connection = connect(url)
        self._connections = [own_connection(url) for _ in range(actors)]
        self._threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in range(actors)]
        self._held: list[set[int]] = [set() for _ in range(actors)]
        self._said: list[list[int]] = [[] for _ in range(actors)]
        self._news = threading.Condition()
        for each, said in zip(self._connections, self._said, strict=True):
            each.add_notice_handler(functools.partial(self._hear, said))
            each.autocommit = False
            each.prepare_threshold = None
        self._connection.execute(SCHEMA.replace("{gate_class}", str(GATE_CLASS)))
        gated = 0
        for file in sorted(Path(msgtx.__file__).parent.glob("sql/*/*.sql"), key=lambda file: file.name):
            text, locks = LOCKS.subn(r"weave.\1(", file.read_text())
            text, between = statements.subn("    perform weave.gate();\n", text)
            if locks + between:
                gated += 1
                self._connection.execute(text.replace("create function", "create or replace function", 1))
        assert gated >= 4, "the functions that take locks have gates"

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()
        for each in (self._connection, *self._connections):
            each.close()

    def explore(self, begin: Callable[[], Story], *, at_least: int = 2, in_parts: bool = True) -> int:
        """Play every schedule; returns their number, of which fewer than `at_least` are an error.

        `in_parts`: with `--part`, only those of the part, any number. Not for a test that needs one certain schedule.
        """
        in_parts = in_parts and not parts.is_whole()
        choices: list[int] = []
        for count in range(1, MOST + 1):
            widths = self._play(begin(), choices, in_parts=in_parts)
            choices += [0] * (len(widths) - len(choices))
            while choices and choices[-1] + 1 >= widths[len(choices) - 1]:
                choices.pop()
            if not choices:
                assert count >= at_least or in_parts, f"{count} schedules, and there were {at_least}"
                return count
            choices[-1] += 1
        raise AssertionError(f"more than {MOST} schedules")

    def _play(self, story: Story, choices: list[int], *, in_parts: bool) -> list[int]:
        """Play one schedule; returns how many alternatives each of its choices had."""
        actors = [
            _Actor(name, list(calls), *each, story.beside.get(name))
            for (name, calls), *each in zip(
                story.actors.items(), self._connections, self._threads, self._held, self._said, strict=False
            )
        ]
        played = Played()
        widths: list[int] = []
        try:
            while any(actor.paused_at != "end" for actor in actors):
                able = [actor for actor in actors if actor.paused_at in {"start", "gate", "commit"}]
                assert able, f"all wait for each other: {[(actor.name, actor.paused_at) for actor in actors]}"
                able = list(parts.alternatives(able, played.trace)) if in_parts else able
                chosen = able[choices[len(widths)] if len(widths) < len(choices) else 0]
                widths.append(len(able))
                self._step(chosen, actors, played)
                played.trace.append(f"{chosen.name}:{chosen.paused_at}")
                story.look(played)
            story.judge(played)
        except BaseException as error:
            error.add_note(f"schedule: {' '.join(played.trace)}")
            error.add_note(f"answers: {played.answers}")
            raise
        finally:
            for actor in actors:
                self._abandon(actor)
        return widths

    def _step(self, actor: _Actor, actors: Sequence[_Actor], played: Played) -> None:
        if actor.paused_at == "start":
            self._close_gates(actor)
            actor.said.clear()
            actor.running = actor.thread.submit(_attempt, actor.calls[0].run, actor.connection)
            actor.running.add_done_callback(lambda _: self._hear())
        elif actor.paused_at == "gate":
            self._open_gate(actor, min(actor.held))
        else:
            call = actor.calls.pop(0)
            assert actor.running is not None
            answer = actor.running.result()
            if isinstance(answer, Exception):
                assert type(answer).__module__ == errors.__name__, (call.name, answer)
                assert call.may_time_out or not isinstance(answer, errors.LockTimeout), (call.name, answer)
                actor.connection.rollback()
            else:
                actor.connection.commit()
            played.answers[f"{actor.name}.{call.name}"] = answer
            actor.running = None
            actor.paused_at = "start" if actor.calls else "end"
        self._settle(actors)

    def _hear(self, said: list[int] | None = None, notice: Diagnostic | None = None) -> None:
        """In an actor's thread: it has come to a gate, or to its end."""
        with self._news:
            if said is not None and notice is not None and (text := notice.message_primary or "").startswith(SAID):
                said.append(int(text.removeprefix(SAID)))
            self._news.notify()

    def _settle(self, actors: Sequence[_Actor]) -> None:
        """Wait until every actor that runs has reached a place where it pauses or waits."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        running = [actor for actor in actors if actor.running is not None and actor.paused_at != "commit"]
        while not self._settled(running, {pid for actor in actors for pid in actor.pids}):
            assert time.monotonic() < deadline, f"{[actor.name for actor in running]} neither ended nor wait for a lock"

    def _settled(self, running: Sequence[_Actor], theirs: set[int]) -> bool:
        """Note where the actors are. Only a look that finds none on its way counts: one that ends may let another go on."""
        with self._news:
            self._news.wait_for(lambda: all(actor.ended or actor.at_gate for actor in running), LOOK_SECONDS)
            paused = {actor.name: "commit" if actor.ended else "gate" for actor in running if actor.ended or actor.at_gate}
        unheard = [actor for actor in running if actor.name not in paused]
        if unheard:
            blocked = dict(
                self._connection.execute(
                    "select pid, pg_blocking_pids(pid) from unnest(%s::int[]) pid",
                    [[pid for actor in unheard for pid in actor.pids]],
                ).fetchall()
            )
            for actor in unheard:
                # Whoever else blocks it, as autovacuum, lets it go by itself.
                if {pid for each in actor.pids for pid in blocked[each]} & theirs:
                    paused[actor.name] = "lock"
        for actor in running:
            actor.paused_at = paused.get(actor.name, actor.paused_at)
        return len(paused) == len(running)

    def _close_gates(self, actor: _Actor) -> None:
        wanted = set(range(actor.calls[0].gate, GATES + 1))
        self._connection.execute(
            "select pg_advisory_lock(gate, %s) from unnest(%s::int[]) gate",
            [actor.pid, [GATE_CLASS + gate for gate in sorted(wanted - actor.held)]],
        )
        actor.held |= wanted
        for gate in sorted(actor.held - wanted):
            self._open_gate(actor, gate)

    def _open_gate(self, actor: _Actor, gate: int) -> None:
        self._connection.execute("select pg_advisory_unlock(%s, %s)", [GATE_CLASS + gate, actor.pid])
        actor.held.discard(gate)

    def _abandon(self, actor: _Actor) -> None:
        """After a failure, let an actor run to its end and roll it back."""
        for gate in sorted(actor.held) if actor.running is not None else ():
            self._open_gate(actor, gate)
        if actor.running is not None:
            actor.running.result(PATIENCE_SECONDS)
            actor.connection.rollback()


def _attempt(run: Callable[[Connection], Any], connection: Connection) -> Any:
    """Run a call; an error is an answer, too."""
    try:
        return run(connection)
    except Exception as error:  # noqa: BLE001 - the story judges it
        return error


@contextlib.contextmanager
def weaving(url: str, *, actors: int = 2, statements: re.Pattern[str] = STATEMENTS) -> Iterator[Weaver]:
    """A weaver, closed at the end; `statements`: in front of which there are gates, too."""
    weaver = Weaver(url, actors=actors, statements=statements)
    try:
        yield weaver
    finally:
        weaver.close()
