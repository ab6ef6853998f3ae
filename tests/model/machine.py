"""Any history of producers, zombies, readers and sweeps, step by step beside the oracle (I1–I12, I17).

A step makes one call of the public API or of `msgtx.protocol`, perhaps with the connection lost at one of its boundaries;
the oracle says what it must answer. After each step the whole log, the ends, the outcomes and the offsets are compared.

Where more belongs: further sweeps in `Administering.sweep` and `history.swept`.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from msgtx import Isolation, TransactionId
from tests.model.history import crashes, some, swept
from tests.model.oracle import ABORT, INVALID, OPEN, Name, Oracle
from tests.model.place import OUTCOMES, refusal
from tests.model.reading import Reading
from tests.model.sessions import Sessions
from tests.model.sharing import Sharing

ticks = st.sampled_from([0, 1, 400, 1_000, 1_001, 5_001, 60_001, -5_001])  # also back, as when a clock is set


class Administering(Sessions, Sharing, Reading):
    def _name(self, which: int) -> Name:
        """A transaction that was, that is, or that is next; and one that never will be."""
        names = [name for life in reversed(self.lives) for name in (life.name, (*life.name[:2], life.number + 1))]
        return self.one_of([*names, *self.oracle.transactions, (1 << 40, 0, 0)], which)

    @rule(which=st.integers(0, 40), how=st.sampled_from(["resolve", "admin"]), crash=crashes)
    def end(self, which: int, how: str, crash: int) -> None:
        """A client that asks how a transaction ended may settle it; so may an administrator."""
        name, client = self._name(which), self.place.client

        def real() -> str:
            if how == "resolve":
                return OUTCOMES[client.transaction_outcome(TransactionId(*name), resolve=True)]
            answer = refusal(lambda: self.place.again(lambda: client.admin.transactions.abort(TransactionId(*name))))
            return ABORT if answer is None else str(answer)

        def model(oracle: Oracle, _: Any) -> str:
            outcome = oracle.end(name, how)
            return outcome if how == "resolve" or outcome == ABORT else INVALID

        self.ask(lambda: self.place.again(real), model, crash=crash)
        assert self.place.outcome(name) == self.oracle.outcome(name)

    @rule(milliseconds=ticks, sweeps=st.booleans(), crash=crashes)
    def tick(self, milliseconds: int, sweeps: bool, crash: int) -> None:
        """Time passes; perhaps somebody sweeps: overdue transactions, markers, floors (I12)."""
        self.pass_time(milliseconds)
        if sweeps:
            self._sweep(crash)

    def _sweep(self, crash: int) -> None:
        self.ask(
            lambda: self.place.again(self.place.client.sweep).transactions_aborted,
            lambda o, _: swept(o),
            crash=crash,
        )

    @precondition(lambda self: self._open())
    @rule(which=some, late=st.sampled_from([0, 1]), by=st.sampled_from([None, 0, 1]), crash=crashes)
    def expire(self, which: int, late: int, by: int | None, crash: int) -> None:
        """Time goes to the very moment when a transaction is over, or one further; then a sweep or a reader comes."""
        name = self.one_of(self._open(), which)
        self.pass_time(max(0, self.oracle.transactions[name].deadline + late - self.oracle.now))
        if by is None:
            self._sweep(crash)
        else:
            self.drain(self.readers[by])

    @precondition(lambda self: self.oracle.group(self.crowd).members)
    @rule(which=some, late=st.sampled_from([0, 1]), by=st.one_of(st.none(), some), crash=crashes)
    def outlast(self, which: int, late: int, by: int | None, crash: int) -> None:
        """Time goes to the moment when a member's session is over, or one further; then a sweep or another member comes."""
        person = self.one_of([*self.oracle.group(self.crowd).members.values()], which)
        self.pass_time(max(0, person.at + person.timeout + late - self.oracle.now))
        if by is None:
            self._sweep(crash)
        else:
            self.beat(self.one_of(self.guests, by), 1, crash)

    def _open(self) -> list[Name]:
        return [name for name in self.oracle.transactions if self.oracle.outcome(name) == OPEN]

    @rule(which=st.integers(0, 40))
    def look(self, which: int) -> None:
        name = self._name(which)
        assert self.place.outcome(name) == self.oracle.outcome(name)
        self._states_agree(settled=False)


class Machine(Administering):
    """The connection may be lost at any boundary."""


class CrashMachine(Administering):
    """The server may crash at any boundary. What was acknowledged is there; of the rest, what came last may be gone (I9)."""

    remembers = True

    @rule(flush=st.sampled_from([False, False, True]), commits=st.booleans())
    def crash(self, flush: bool, commits: bool) -> None:
        """The server crashes between two calls; perhaps somebody's unrelated commit has flushed all that came before.

        Then perhaps somebody commits who has not heard of it: what is gone makes it an abort (I6).
        """
        server = self.place.server
        assert server is not None
        if flush:
            server.flush()
        server.crash()
        kept = [0] if flush else range(1 + max(len(oracle.past) for oracle in self.oracles))
        worlds = [(oracle.fork(), back) for oracle in self.oracles for back in kept if back <= len(oracle.past)]
        for oracle, back in worlds:
            oracle.lose(back)
        self.oracles = [oracle for oracle, _ in worlds]
        self.lost()
        if commits and self.begun():
            self._commit(self.begun()[-1], 0)

    def lost(self) -> None:
        self.place.reconnect()
        self.everything_agrees()
        self.pass_time(1)  # else a row could not be distinguished from the one that it replaces
        for reader in self.readers:
            for partition, at in reader.at.items():
                if reader.isolation is Isolation.READ_UNCOMMITTED or at > len(self.oracle.logs[partition]):
                    reader.seek(partition, self.partitions[partition], 0)
