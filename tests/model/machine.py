"""Any history of producers, zombies, readers and sweeps, step by step beside the oracle (I1–I10, I12).

A step makes one call of the public API or of `msgtx.protocol`, perhaps with the connection lost at one of its boundaries;
the oracle says what it must answer. After each step the whole log, the ends, the outcomes and the offsets are compared.

Where more belongs: groups with members beside `commit_an_offset`, sessions beside `Producing.commit`, further sweeps in
`Administering.sweep` and `history.expire_overdue`.
"""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from msgtx import Outcome, TransactionId
from tests.model.by_hand import ByHand
from tests.model.history import PARTITIONS, crashes, expire_overdue, ids, some
from tests.model.oracle import ABORT, INVALID, Name
from tests.model.place import OUTCOMES, refusal
from tests.model.reading import Reading

ticks = st.sampled_from([1, 400, 1_000, 1_001, 5_001, 60_001])


class Administering(ByHand, Reading):
    def _name(self, which: int) -> Name:
        """A transaction that was, that is, or that is next; and one that never will be."""
        names = [name for life in reversed(self.lives) for name in (life.name, (*life.name[:2], life.number + 1))]
        return self.one_of([*names, *self.oracle.transactions, (1 << 40, 0, 0)], which)

    @rule(which=st.integers(0, 40), crash=crashes)
    def resolve(self, which: int, crash: int) -> None:
        """Whoever asks how a transaction ended may settle it."""
        name = self._name(which)
        client = self.place.client
        self.ask(
            lambda: OUTCOMES[
                self.place.again(lambda: client.transaction_outcome(TransactionId(*name), resolve=True))
            ],
            lambda o, _: o.end(name, "resolve"),
            crash=crash,
        )
        assert self.place.outcome(name) == self.oracle.outcome(name)

    @rule(which=st.integers(0, 40))
    def ask_for_an_outcome(self, which: int) -> None:
        name = self._name(which)
        assert self.place.outcome(name) == self.oracle.outcome(name)

    @rule(which=st.integers(0, 40), crash=crashes)
    def abort_as_administrator(self, which: int, crash: int) -> None:
        name = self._name(which)
        self.ask(
            lambda: refusal(
                lambda: self.place.again(lambda: self.place.client.admin.transactions.abort(TransactionId(*name)))
            ),
            lambda o, _: None if o.end(name, "admin") == ABORT else INVALID,
            crash=crash,
        )

    @precondition(lambda self: self.oracle.ids)
    @rule(which=ids, crash=crashes)
    def fence(self, which: int, crash: int) -> None:
        name = self.one_of(list(self.oracle.ids), which)
        self.ask(
            lambda: tuple(self.place.again(lambda: self.place.client.admin.transactions.fence(name))),
            lambda o, _: o.fence(name),
            crash=crash,
        )

    @rule(milliseconds=ticks)
    def tick(self, milliseconds: int) -> None:
        self.pass_time(milliseconds)

    @rule(crash=crashes)
    def sweep(self, crash: int) -> None:
        """Overdue transactions, markers, floors (I12)."""
        self._sweep(crash)

    def _sweep(self, crash: int) -> None:
        self.ask(
            lambda: self.place.again(self.place.client.sweep).transactions_aborted,
            lambda o, _: expire_overdue(o),
            crash=crash,
        )

    @rule(milliseconds=st.sampled_from([1_001, 60_001]))
    def expire(self, milliseconds: int) -> None:
        self.pass_time(milliseconds)
        self._sweep(0)

    @rule()
    def list_transactions(self) -> None:
        self._states_agree(settled=False)


class Machine(Administering):
    """The connection may be lost."""
