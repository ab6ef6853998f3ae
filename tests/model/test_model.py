"""Any history beside the oracle (I1–I12). `HYPOTHESIS_PROFILE=long MINUTES=…` runs for so long, with fresh seeds."""

import itertools
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from tests import parts
from tests.faults import CrashServer, crash_server
from tests.model.deliveries import ACCEPT, LIMIT, LOCK_MS, REJECT, RELEASE, RENEW
from tests.model.history import LONG_MS, PARTITIONS, SHORT_MS
from tests.model.machine import CrashMachine, Machine
from tests.model.oracle import ABORT, COMMIT
from tests.model.place import Place
from tests.model.rounds import minutes_wanted, places, run_round, run_rounds

pytestmark = pytest.mark.slow

BOUNDARIES = 16  # of a session that publishes, or decides a transaction: a few more than there are
SEED = 20_261_121  # of the everyday run, so that it is the same everywhere; the long one has fresh ones
LONG = hypothesis.settings.get_current_profile_name() == "long"


@pytest.mark.long
def test_any_history_with_lost_connections_is_as_the_oracle_says(make_database: Callable[[], str]) -> None:
    with places(make_database) as where:
        if LONG:
            assert not run_rounds(where, minutes=minutes_wanted() / 2, first=None, report=print)
        else:
            number, histories = parts.histories(SEED, 50)
            run_round(where, number=number, histories=histories)


@pytest.fixture(scope="module")
def crashing() -> Iterator[CrashServer]:
    with crash_server() as server:
        yield server


@pytest.mark.long
def test_any_history_with_crashes_of_the_server_is_as_the_oracle_says(crashing: CrashServer) -> None:
    with places(crashing.server.create_database, crashing) as where:
        if LONG:
            assert not run_rounds(where, minutes=minutes_wanted() / 2, first=None, report=print)
        else:
            number, histories = parts.histories(SEED, 5)
            run_round(where, number=number, histories=histories)


def test_a_crash_while_a_step_only_reads_takes_back_what_came_before_it(crashing: CrashServer) -> None:
    """I9: an open transaction's batch may go; what a member released just before is flushed, and stays."""
    with places(crashing.server.create_database, crashing) as where:

        class Here(CrashMachine):
            find_place = staticmethod(where.find)

        history = Here()
        history.begin(by_hand=[False, False])
        history.gather(members=1, static=False)
        history.release(which=0, given=[0], own=True, looks=False, crash=0)
        history.send_batches(which=0, partition=1, sizes=[1], crash=0)
        history.live(which=0, how="look", beat=0, crash=1)
        history.everything_agrees()
        assert history.oracle.logs[1] == []
        history.teardown()


@pytest.fixture
def history(database_url: str) -> Iterator[Machine]:
    """A history that is written by hand."""
    place = Place(database_url)

    class Here(Machine):
        find_place = staticmethod(lambda: place)

    made = Here()
    made.begin(by_hand=[False, False])
    yield made
    made.teardown()
    place.close()


def test_members_that_hand_over_die_and_come_back_are_as_the_oracle_says(history: Machine) -> None:
    """I11, I10: at each station all members commit for every partition, in transactions and without, by what it knows."""

    def everybody_commits() -> None:
        history.everything_agrees()
        for which, partition in itertools.product(range(len(history.guests)), range(PARTITIONS)):
            commit = {"who": "anybody", "which": which, "where": [partition], "crash": 0}
            for at, when in enumerate((-1, 0, 1, 2)):
                history.commit_as_member(**commit, at=at, when=when)
                history.everything_agrees()
            for life, sends in enumerate(("nothing", "at once", "flushed")):
                history.transact_as_member(**commit, life=life, at=1, when=0, sends=sends, outcome=COMMIT)
                history.everything_agrees()
                if history.begun():
                    history.finish(which=0, outcome=ABORT, crash=0)
        history.commit_as_member(who="nobody", which=0, where=[0], at=1, when=0, crash=0)
        history.everything_agrees()

    def divide(how: str) -> None:
        history.rebalance(how=how, spread=[1, 2, 2], which=0, crash=0)

    history.send_plainly(where=[0, 1, 2], sizes=[3], crash=0)
    history.gather(members=2, static=True)  # one that owns all, one that waits for what it shall own
    everybody_commits()
    history.release(which=0, given=[0, 1, 2], own=False, looks=True, crash=0)
    everybody_commits()
    divide("later")
    history.join(which=0, static=True, timeout=LONG_MS, everything=False, crash=0)
    divide("arrives")
    everybody_commits()
    divide("by hand")
    history.join(which=1, static=True, timeout=SHORT_MS, everything=True, crash=0)  # it replaces the first
    everybody_commits()
    divide("library")
    history.release(which=1, given=[0, 1, 2], own=False, looks=True, crash=0)
    everybody_commits()
    history.outlast(which=1, late=1, by=1, crash=0)
    everybody_commits()
    history.join(which=0, static=True, timeout=LONG_MS, everything=True, crash=0)
    divide("library")
    history.release(which=1, given=[0, 1, 2], own=False, looks=True, crash=0)
    everybody_commits()
    for which in range(len(history.guests)):
        history.live(which=which, how="leave", beat=0, crash=0)
    everybody_commits()


@pytest.mark.parametrize("keeps", [False, True])
def test_sessions_that_commit_roll_back_or_lose_their_connection_are_as_the_oracle_says(
    keeps: bool, history: Machine
) -> None:
    """I6, I10: what a session publishes, and what it decides, with the connection lost at each boundary."""
    history.init(which=0, timeout=LONG_MS, how="library", crash=0)
    for crash, commits in itertools.product(range(BOUNDARIES), (True, False)):
        history.publish(where=[2, 0], count=2, keeps=keeps, commits=commits, crash=crash)
        history.everything_agrees()
        history.transact_in_session(
            which=0, where=[0, 1], timeout=None, keeps=keeps, at=crash % 5, ends=COMMIT if commits else ABORT, crash=crash
        )
        history.everything_agrees()


def test_transactions_that_others_decide_late_or_elsewhere_are_as_the_oracle_says(history: Machine) -> None:
    """I4, I6, I7, I12: sealed and prepared ones, whose time passes, whose id has a successor, that others end."""
    for crash, outcome, meanwhile in itertools.product((0, 2), (COMMIT, ABORT), ("nothing", "time", "init", "resolve")):
        history.init(which=0, timeout=LONG_MS, how="library", crash=0)
        history.transact_in_session(which=-1, where=[0, 1], timeout=None, keeps=False, at=crash, ends="OPEN", crash=crash)
        history.init(which=1, timeout=LONG_MS, how="library", crash=0)
        history.prepare(which=-1, where=[1, 2], timeout=None, at=crash + 1, crash=crash)
        history.everything_agrees()
        history.send_plainly(where=[1], sizes=[1], crash=0)
        history.commit_offsets(partition=0, at=crash, crash=0)
        if meanwhile == "time":
            history.tick(milliseconds=LONG_MS + 1, sweeps=bool(crash), crash=0)
        for which in range(2) if meanwhile in {"init", "resolve"} else ():
            if meanwhile == "init":
                history.init(which=which, timeout=LONG_MS, how="by hand", crash=0)
            else:
                history.end(which=which, how="resolve", crash=0)
        history.everything_agrees()
        if history.left:
            history.end_session(which=0, commits=outcome == COMMIT, crash=crash)
        history.everything_agrees()
        for which in (-1, -1, 0):
            history.complete(which=which, outcome=outcome, crash=crash)
            history.everything_agrees()
        history.complete(which=-1, outcome={COMMIT: ABORT, ABORT: COMMIT}[outcome], crash=0)


def test_readers_that_begin_beside_what_is_sealed_are_as_the_oracle_says(history: Machine) -> None:
    """I10, I12: offsets that wait for a session or an outside party are waited for; an overdue session's are not."""
    history.send_plainly(where=[0, 1, 2], sizes=[3], crash=0)
    history.init(which=0, timeout=LONG_MS, how="library", crash=0)
    history.transact_in_session(which=-1, where=[0, 1], timeout=None, keeps=False, at=2, ends="OPEN", crash=0)
    history.init(which=1, timeout=LONG_MS, how="library", crash=0)
    history.prepare(which=-1, where=[1, 2], timeout=None, at=3, crash=0)
    for partition in range(PARTITIONS):
        history.begin_anew(group=1, partition=partition)
        history.everything_agrees()
    history.pass_time(LONG_MS + 1)
    history.begin_anew(group=1, partition=0)  # the session's is overdue, and aborted on the way
    history.everything_agrees()
    history.begin_anew(group=1, partition=1)
    history.complete(which=0, outcome=COMMIT, crash=0)
    history.begin_anew(group=1, partition=1)


def test_readers_that_begin_at_the_end_are_as_the_oracle_says(history: Machine) -> None:
    """I10: who goes back before it has committed begins where it began, also behind what was open then."""
    history.send_plainly(where=[0, 1, 2], sizes=[3], crash=0)
    history.send(which=0, partition=1, count=2, timeout=None, flush=True, crash=0)
    for partition in range(PARTITIONS):
        history.begin_at_the_end(partition=partition, counts=[2, 3])
        history.everything_agrees()
    history.finish(which=0, outcome=COMMIT, crash=0)
    history.begin_at_the_end(partition=1, counts=[1])


@pytest.mark.parametrize("closes", [False, True])
def test_commits_in_the_background_are_as_the_oracle_says(closes: bool, history: Machine) -> None:
    """I11: they take effect in the order in which they were handed over."""
    history.send_plainly(where=[0], sizes=[30], crash=0)
    for at in ([1, 2, 3, 4], [9, 8, 7, 6], [20, 3], [5, 5, 30, 0]):
        history.commit_in_background(partition=0, at=at * 3, closes=closes)
        history.everything_agrees()


def test_members_of_a_share_group_are_as_the_oracle_says(history: Machine) -> None:
    """I17: they acquire, answer, lose their locks; what is not accepted comes again, at last as a dead letter."""
    poll = {"where": [0], "most": 50, "how": "new", "crash": 0}
    history.send_plainly(where=[0], sizes=[3, 3], crash=0)
    for _ in range(2):
        history.work(which=0, timeout=LONG_MS, how="join", crash=0)
    for answer in (ACCEPT, RELEASE, RENEW, REJECT):
        history.acquire(which=0, **{**poll, "most": 3})
        for whose in (1, 0):
            history.answer(which=whose, whose=whose, count=1, answer=answer, other=answer, again=True, crash=0)
            history.everything_agrees()
    for late in (-1, 0) * LIMIT:
        history.outlast_lock(which=0, late=late)
        history.acquire(which=1, **poll)
        history.everything_agrees()
    assert history.oracle.letters


def test_answers_in_transactions_are_as_the_oracle_says(history: Machine) -> None:
    """I17, I6: pending until the decision, whoever makes it; what others say meanwhile is refused."""
    poll = {"where": [0], "most": 3, "how": "new", "crash": 0}
    history.work(which=0, timeout=LONG_MS, how="join", crash=0)
    history.work(which=0, timeout=LONG_MS, how="join", crash=0)
    history.init(which=0, timeout=LONG_MS, how="by hand", crash=0)
    meanwhiles = ("nothing", "lock", "time", "fence", "leave")
    for outcome, meanwhile in itertools.product((COMMIT, ABORT, "whole"), meanwhiles):
        history.send_plainly(where=[0], sizes=[2, 1], crash=0)
        history.acquire(which=0, **poll)
        said = {"which": 0, "whose": 0, "count": 3, "timeout": None, "crash": 0}
        history.answer_in(
            life=0, **said, answer=ACCEPT, other=REJECT if meanwhile == "lock" else RELEASE,
            outcome="whole" if outcome == "whole" else "OPEN",
        )  # fmt: skip
        history.everything_agrees()
        if meanwhile == "lock":
            history.pass_time(LOCK_MS)
        elif meanwhile == "time":
            history.pass_time(LONG_MS + 1)
            history.work(which=1, timeout=LONG_MS, how="beat", crash=0)
        elif meanwhile == "fence":
            history.init(which=0, timeout=LONG_MS, how="by hand", crash=0)
        elif meanwhile == "leave":
            history.work(which=0, timeout=LONG_MS, how="leave", crash=0)
        for which in (0, 1):
            history.answer(which=which, whose=-which, count=1, answer=ACCEPT, other=ACCEPT, again=False, crash=0)
            history.acquire(which=which, **poll)
            history.everything_agrees()
        if outcome != "whole":
            history.decide(which=0, outcome=outcome, offsets=False, now=True, crash=0)
        history.everything_agrees()
        for _ in range(3):
            history.pass_time(LOCK_MS)
            for which in (1, 0):
                history.work(which=which, timeout=LONG_MS, how="beat", crash=0)
                history.acquire(which=which, **poll)
                history.everything_agrees()
        history._join(history.workers[0], LONG_MS, 0)


def test_a_crash_may_forget_an_acquisition_and_never_an_answer(crashing: CrashServer) -> None:
    """I17, decision 0118."""
    with places(crashing.server.create_database, crashing) as where:

        class Here(CrashMachine):
            find_place = staticmethod(where.find)

        history = Here()
        history.begin(by_hand=[True, True])
        history.send_plainly(where=[0], sizes=[3], crash=0)
        history.work(which=0, timeout=LONG_MS, how="join", crash=0)
        history.acquire(which=0, where=[0], most=2, how="new", crash=0)
        history.answer(which=0, whose=0, count=1, answer=ACCEPT, other=ACCEPT, again=False, crash=0)
        history.acquire(which=0, where=[0], most=50, how="new", crash=0)
        history.crash(flush=False, commits=False)
        history.everything_agrees()
        assert history.oracle.deliveries(history.crew, 0).done == {1}
        assert len(history.oracle.deliveries(history.crew, 0).flight) == 1
        history.teardown()
