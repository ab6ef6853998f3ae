"""Users' sessions: what is published with their rows, and transactions that they decide, or that an outside party does (I6).

When a COMMIT was not answered, the application finds out what became of it: its own row tells, or the transaction's name.
"""

import contextlib
from dataclasses import dataclass
from typing import Final

import sqlalchemy
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sqlalchemy.orm import Session

from msgtx import PreparedTransaction, TransactionId, errors, orm
from tests.model.history import PARTITIONS, SHORT_MS, counts, crashes, some
from tests.model.lives import Life
from tests.model.membership import Commit
from tests.model.oracle import ABORT, COMMIT, FENCED, INVALID, NO_ID, OPEN, Name, Offsets, Oracle, Request
from tests.model.place import MADE, OUTCOMES, named, refusal
from tests.model.producing import Producing, together, where

LOST: Final = (errors.MsgtxError, sqlalchemy.exc.DBAPIError)
SQL_PUBLISH: Final = sqlalchemy.text("select msgtx.publish(:topic, value_bytes => :value, partition => :partition)")
NOTHING: Final = "nothing"  # was begun: the connection was lost before
timeouts = st.sampled_from([None, None, SHORT_MS])
keeps = st.booleans()  # whether the session keeps its snapshot


@dataclass
class Left:
    """A session that has sealed a transaction, and has not ended."""

    session: Session
    life: Life
    name: Name


class Sessions(Producing):
    def __init__(self) -> None:
        super().__init__()
        self.left: list[Left] = []
        self.tokens: list[PreparedTransaction] = []

    def _using(self) -> list[Life]:
        """Return those whose last transaction is decided, and its session over."""
        held = [left.life for left in self.left]
        return [
            life
            for life in super()._using()
            if life not in held and (life.sealed is None or self.oracle.outcome(life.sealed) != OPEN)
        ]

    def _idle(self) -> list[Life]:
        return [life for life in self._using() if not life.begun and not life.dead]

    def _write(self, session: Session) -> str:
        """Write a row of the user's. Returns its name."""
        row = f"{id(self)}-{next(self.values)}"
        session.execute(MADE.insert().values(name=row))
        return row

    @rule(
        where=where,
        count=counts,
        keeps=keeps,
        by_sql=st.integers(0, PARTITIONS),
        commits=st.sampled_from([True, True, False]),
        crash=crashes,
    )
    def publish(
        self, where: list[int], count: int, keeps: bool, commits: bool, crash: int, by_sql: int = PARTITIONS
    ) -> None:
        """Records and a row, or neither, some of them by SQL: those for one partition. Above READ COMMITTED there is none by
        SQL, and what was not committed stays in the log, aborted."""
        contents = {partition: self.content(count) for partition in sorted(where)}
        partition, content = next(iter(contents.items()))

        def real() -> tuple[bool, bool]:
            row = None
            with contextlib.suppress(*LOST), Session(self.place.sessions(keeps=keeps)) as session:
                row = self._write(session)
                for at, values in contents.items():
                    topic, index = self.partitions[at]
                    for value in values:
                        if at == by_sql and not keeps:
                            sql = {"topic": topic, "value": value, "partition": index}
                            session.execute(SQL_PUBLISH, sql)
                        else:
                            orm.publish(session, topic, value, partition=index)
                if commits:
                    session.commit()
            return row is not None and self.place.has_row(row), self.place.holds(self.partition_ids[partition], content)

        def model(oracle: Oracle, answer: tuple[bool, bool]) -> tuple[bool, bool]:
            there, stored = answer
            if stored:
                oracle.publish(contents, shown=there)
            return there, stored or there

        there, stored = self.ask(real, model, crash=crash)
        assert there == stored == commits or crash

    @precondition(lambda self: self._idle())
    @rule(
        which=some,
        where=where,
        timeout=timeouts,
        keeps=keeps,
        at=st.integers(-5, 5),
        ends=st.sampled_from([COMMIT, COMMIT, ABORT, OPEN]),
        crash=crashes,
    )
    def transact_in_session(
        self, which: int, where: list[int], timeout: int | None, keeps: bool, at: int, ends: str, crash: int
    ) -> None:
        """A transaction whose decision is the COMMIT of a session; perhaps the session goes on for a while (OPEN)."""
        life = self.one_of(self._idle(), which)
        ends = ABORT if ends == OPEN and self.remembers else ends  # a crash of the server ends it
        requests, offsets = self._begin_sealing(life, where, timeout, at)
        name, tails = life.name, {request.partition: request.last for request in requests}
        # Its deadline is compared with a clock that is a row here: who keeps a snapshot would see it stand still.
        session = Session(self.place.sessions(keeps=keeps and ends != OPEN))
        refusals: list[str] = []

        def real() -> str:
            begun = None
            try:
                self._write(session)
                with life.producer.transaction(timeout, session=session) as begun:
                    self._hand_over(life, requests, offsets)
                if ends == COMMIT:
                    session.commit()
                return ends if ends != ABORT else self._find_out(begun.id, session)
            except LOST as error:
                if isinstance(error, errors.FatalError):
                    return named(error)
                return NOTHING if begun is None else self._find_out(begun.id, session)

        def model(oracle: Oracle, answer: str) -> str:
            if answer == NOTHING:
                return answer
            refused = self._model_seal(oracle, name, requests, offsets, "session")
            if refused in {FENCED, NO_ID}:
                return refused
            if refused is not None:
                refusals.append(refused)
                oracle.decide(name, ABORT, tails, {})
                return ABORT
            if answer == OPEN:
                return OPEN
            return oracle.commit_sealed(name) if answer == COMMIT else oracle.end(name, "resolve")

        answer = self.ask(real, model, crash=crash)
        assert answer in {ends, FENCED, NO_ID} or crash or refusals, answer
        if answer != OPEN:
            session.close()
        if answer in {FENCED, NO_ID}:
            life.error = answer
            return
        if answer != NOTHING:
            self._sealed(life, requests)
        life.ended()
        if answer == OPEN:
            life.sealed = name
            self.left.append(Left(session, life, name))

    def _begin_sealing(
        self, life: Life, where: list[int], timeout: int | None, at: int
    ) -> tuple[list[Request], dict[tuple[str, int], Commit]]:
        life.timeout = timeout
        requests = [life.request(partition, self.content(2)) for partition in sorted(where)]
        at = min(at, len(self.oracle.logs[where[0]]))
        return requests, {(self.groups[1], where[0]): Commit(at)} if at >= 0 else {}

    def _hand_over(self, life: Life, requests: list[Request], offsets: Offsets) -> None:
        assert life.producer is not None
        for request in requests:
            topic, index = self.partitions[request.partition]
            for value in request.values:
                life.producer.send(topic, value, partition=index)
        sent = {self.partitions[partition]: commit.offset for (_, partition), commit in offsets.items()}
        life.producer.send_offsets_to_transaction(sent, self.groups[1])

    def _model_seal(self, oracle: Oracle, name: Name, requests: list[Request], offsets: Offsets, kind: str) -> str | None:
        told = together(oracle.append(*requests), requests)
        if isinstance(told, str):
            return told
        return oracle.seal(name, kind, {request.partition: request.last for request in requests}, offsets)

    def _sealed(self, life: Life, requests: list[Request]) -> None:
        for request in requests:
            life.sent(request)
            self.keep(request)
            last = self.oracle.last_sequence(life.producer_id, life.epoch, request.partition)
            life.sequences[request.partition] = last + 1

    def _find_out(self, transaction_id: TransactionId, session: Session) -> str:
        """Ask how a transaction ended, once its session is over."""
        with contextlib.suppress(*LOST):  # its ROLLBACK may be what is lost
            session.close()
        client = self.place.client
        return OUTCOMES[self.place.again(lambda: client.transaction_outcome(transaction_id, resolve=True))]

    @precondition(lambda self: self.left)
    @rule(which=some, commits=st.booleans(), crash=crashes)
    def end_session(self, which: int, commits: bool, crash: int) -> None:
        """A session ends that has stood still: in time, or after others have ended its transaction."""
        left = self.left.pop(which % len(self.left))
        in_time = self.oracle.outcome(left.name) == OPEN and left.name not in self.oracle.overdue()

        def real() -> str:
            with contextlib.suppress(*LOST):
                if commits:
                    left.session.commit()
                    return COMMIT
            return self._find_out(TransactionId(*left.name), left.session)

        def model(oracle: Oracle, answer: str) -> str:
            return oracle.commit_sealed(left.name) if answer == COMMIT else oracle.end(left.name, "resolve")

        answer = self.ask(real, model, crash=crash)
        left.session.close()
        assert (answer == COMMIT) == (commits and in_time) or crash

    # ── an outside party ──

    @precondition(lambda self: self._idle())
    @rule(which=some, where=where, timeout=timeouts, at=st.integers(-5, 5), crash=crashes)
    def prepare(self, which: int, where: list[int], timeout: int | None, at: int, crash: int) -> None:
        life = self.one_of(self._idle(), which)
        if not self._begin(life, timeout):
            return
        requests, offsets = self._begin_sealing(life, where, timeout, at)
        name = life.name

        def real() -> str | None:
            assert life.producer is not None
            self._hand_over(life, requests, offsets)
            found = refusal(life.producer.prepare_transaction)
            if isinstance(found, str):
                return found
            assert found.transaction_id == name
            self.tokens.append(found)
            return None

        answer = self.ask(real, lambda o, _: self._model_seal(o, name, requests, offsets, "external"), crash=crash)
        self._sealed(life, requests)
        self._told(life, answer)
        if answer is None:
            life.ended()
            life.sealed = name
        elif not life.dead:
            self._abort(life, 0)

    @precondition(lambda self: self.tokens)
    @rule(which=some, outcome=st.sampled_from([COMMIT, ABORT]), crash=crashes)
    def complete(self, which: int, outcome: str, crash: int) -> None:
        """In any process, any number of times, also after others have ended it."""
        token = self.one_of(self.tokens, which)

        def real() -> str:
            answer = refusal(lambda: self.place.again(lambda: self.place.client.complete(token, commit=outcome == COMMIT)))
            return answer if answer == INVALID else OUTCOMES[answer]

        self.ask(real, lambda o, _: o.complete(tuple(token.transaction_id), outcome), crash=crash)

    def _settle(self) -> None:
        """What waits for a session or an outside party is decided first."""
        while self.left:
            self.end_session(which=0, commits=True, crash=0)
        for at in range(len(self.tokens)):
            if self.oracle.outcome(tuple(self.tokens[at].transaction_id)) == OPEN:
                self.complete(which=at, outcome=COMMIT if at % 2 else ABORT, crash=0)
        assert not any(t.outcome == OPEN and t.sealed == "external" for t in self.oracle.transactions.values())
        super()._settle()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            for left in self.left:
                left.session.close()
