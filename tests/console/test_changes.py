"""Changes from a browser: previewed, confirmed once, by the person who saw the preview, with the rights of a role."""

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

import msgtx
from msgtx import TopicPartition, errors
from msgtx.changes import CHANGES
from msgtx.console import changing
from msgtx.console.changing import MOST_PREVIEWS, OFFERED
from msgtx.console.viewers import CONNECTIONS
from msgtx.types import Acknowledgement, Outcome
from tests.console.conftest import HOST, Browse, sign_in, token
from tests.databases import PATIENCE_SECONDS, wait_until
from tests.refusals import refuses
from tests.roles import Roles
from tests.store.steps import new_mirror, unique
from tests.topics import produce

ORIGIN = {"origin": HOST}


@pytest.fixture
def group(client: msgtx.Client, topic: str) -> str:
    """A group at offset 2 of the topic."""
    name = unique("group")
    client.admin.groups.reset(name, 2, topics=[topic])
    return name


@pytest.fixture
def allowed(browse: Browse) -> TestClient:
    """A console without a sign-in that changes things."""
    return browse(sign_in=False, allow_changes=True)


def action(text: str) -> str:
    """Return the address that the form of a change is sent to."""
    found = re.search(r'<form class="change[ a-z]*" method="post" action="([^"]+)"', text)
    assert found is not None, text
    return unescape(found[1])


def asked_for(browser: TestClient, verb: str, fixed: dict[str, str], **given: str) -> Any:
    """Fill in a form. Returns the answer."""
    form = browser.get(f"/change/{verb.replace(' ', '-')}?{urlencode(fixed)}").text
    return browser.post(action(form), data={"token": token_in(form), **given}, headers=ORIGIN)


def previewed(browser: TestClient, verb: str, fixed: dict[str, str], **given: str) -> str:
    """Fill in a form. Returns the address of the preview."""
    answer = asked_for(browser, verb, fixed, **given)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def token_in(text: str) -> str:
    """Return the token of the form of a change: the last one of the page."""
    return token(text[text.index('<form class="change') :])


def confirm(browser: TestClient, address: str, **more: str) -> Any:
    """Confirm a preview as a browser does, and follow to the result."""
    shown = browser.get(address).text
    answer = browser.post(address, data={"token": token_in(shown), **more}, headers=ORIGIN)
    assert answer.status_code == 303, answer.text
    return browser.get(answer.headers["location"])


# ── each change, end to end ──


def test_a_group_is_reset_deleted_in_part_and_deleted(
    allowed: TestClient, client: msgtx.Client, group: str, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    assert f'href="/change/groups-reset-offsets?group={group}"' in allowed.get("/group", params={"name": group}).text
    address = previewed(allowed, "groups reset-offsets", {"group": group}, target="earliest", topics="", value="")
    shown = allowed.get(address).text
    assert f"It would reset 1 offset of group &#39;{group}&#39;." in shown
    assert f"msgtx groups reset-offsets {group} --all-topics --to-earliest" in shown
    assert client.admin.groups.offsets(group)[partition].offset == 2
    assert "Done" in confirm(allowed, address).text
    assert client.admin.groups.offsets(group)[partition].offset == 0
    address = previewed(allowed, "groups reset-offsets", {"group": group}, target="shift", value="1", topics=f"{topic}:0")
    assert "Done" in confirm(allowed, address).text
    assert client.admin.groups.offsets(group)[partition].offset == 1
    address = previewed(allowed, "groups delete-offsets", {"group": group}, topics=topic)
    assert "Done" in confirm(allowed, address).text
    assert client.admin.groups.offsets(group) == {}
    client.admin.groups.reset(group, 1, topics=[topic])
    assert "Done" in confirm(allowed, previewed(allowed, "groups delete", {"group": group})).text
    assert group not in {each.group for each in client.admin.groups.list()}


def test_dead_letters_are_redriven_and_their_group_is_reset_and_deleted(
    allowed: TestClient, client: msgtx.Client, topic: str
) -> None:
    group = dead_letters(client, topic)
    assert client.admin.shares.describe(group).dead_letters == 3
    address = previewed(allowed, "shares redrive", {"group": group}, max_records="2")
    assert f"send 2 dead letters of share group &#39;{group}&#39; back" in allowed.get(address).text
    assert f"msgtx shares redrive {group} --max-messages 2" in allowed.get(address).text
    done = confirm(allowed, address).text
    assert re.search(r"<dt>sent</dt><dd[^>]*>2<", done)
    assert client.admin.shares.describe(group).dead_letters == 1
    assert client.admin.partitions.describe(TopicPartition(topic, 0)).log_end_offset == 5
    address = previewed(allowed, "shares reset-offsets", {"group": group}, target="latest")
    assert "Done" in confirm(allowed, address).text
    assert client.admin.shares.describe(group).lag == 0
    assert "Done" in confirm(allowed, previewed(allowed, "shares delete", {"group": group})).text
    with refuses(errors.GroupNotFound, group=group):
        client.admin.shares.describe(group)


def test_a_mirror_is_reset(allowed: TestClient, client: msgtx.Client) -> None:
    name = unique("mirror")
    with client.runtime.engine.connection() as connection:
        new_mirror(connection, name)
    assert f'href="/change/mirror-reset?name={name}"' in allowed.get("/mirror", params={"name": name}).text
    address = previewed(allowed, "mirror reset", {"name": name})
    assert f"msgtx mirror reset {name}" in allowed.get(address).text
    assert "Done" in confirm(allowed, address).text
    with refuses(errors.MirrorNotFound, name=name):
        client.admin.mirrors.describe(name)


def test_a_transaction_is_aborted_and_its_producer_fenced(allowed: TestClient, client: msgtx.Client, topic: str) -> None:
    with client.producer(transactional_id=unique("id")) as producer:
        name = producer.begin_transaction().id
        producer.send(topic, b"x")
        producer.flush(30)
        page = allowed.get("/transaction", params={"id": str(name)}).text
        assert f'href="/change/transactions-abort?transaction_id={name}"' in page
        address = previewed(allowed, "transactions abort", {"transaction_id": str(name)})
        assert f"abort transaction {name} (OPEN)" in allowed.get(address).text
        assert client.transaction_outcome(name) is Outcome.OPEN
        assert "ABORTED" in confirm(allowed, address).text
        assert client.transaction_outcome(name) is Outcome.ABORTED
        assert (
            "There is nothing to change."
            in allowed.get(previewed(allowed, "transactions abort", {"transaction_id": str(name)})).text
        )
        transactional_id = str(producer.config.transactional_id)
        before = client.admin.transactions.describe(transactional_id).producer_epoch
        assert (
            "Done" in confirm(allowed, previewed(allowed, "transactions fence", {"transactional_id": transactional_id})).text
        )
        assert client.admin.transactions.describe(transactional_id).producer_epoch > before


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_a_prepared_transaction_is_completed(allowed: TestClient, client: msgtx.Client, topic: str, decision: str) -> None:
    with client.producer(transactional_id=unique("id")) as producer, producer.transaction() as transaction:
        producer.send(topic, b"a")
        prepared = transaction.prepare()
    page = allowed.get("/transaction", params={"id": str(prepared.transaction_id)}).text
    assert f"/change/transactions-complete?{urlencode({'token': str(prepared)})}" in unescape(page)
    assert "/change/transactions-abort" not in page
    address = previewed(allowed, "transactions complete", {"token": str(prepared)}, decision=decision)
    assert "Done" in confirm(allowed, address).text
    expected = Outcome.COMMITTED if decision == "commit" else Outcome.ABORTED
    assert client.transaction_outcome(prepared.transaction_id) is expected


def test_records_and_topics_are_deleted(allowed: TestClient, client: msgtx.Client, topic: str) -> None:
    address = previewed(allowed, "topics delete-records", {"topic": topic}, partition="0", before="-1")
    produce(client, topic, 1)
    assert "Done" in confirm(allowed, address).text
    assert client.admin.partitions.describe(TopicPartition(topic, 0)).log_start_offset == 3
    address = previewed(allowed, "topics delete", {"topic": topic})
    produce(client, topic, 1)  # a topic that is written to can be deleted
    assert "Done" in confirm(allowed, address).text
    assert topic not in client.topics.list()


def test_a_cut_is_deleted(allowed: TestClient, client: msgtx.Client, topic: str) -> None:
    name = unique("cut")
    client.snapshots.save(name, client.snapshots.take([topic]).snapshot)
    assert f"/change/offsets-delete-snapshot?name={name}" in allowed.get("/cut", params={"name": name}).text
    assert "Done" in confirm(allowed, previewed(allowed, "offsets delete-snapshot", {"name": name})).text
    assert name not in {each.name for each in client.snapshots.list()}


# ── without the flag, and what is no form ──


@pytest.mark.parametrize("path", OFFERED)
def test_without_the_flag_there_is_no_change(owner: TestClient, path: str) -> None:
    assert owner.get(f"/{path}").status_code == 404
    assert owner.post(f"/{path}", headers=ORIGIN).status_code in {404, 405}
    assert owner.post(f"/{path}/x", headers=ORIGIN).status_code in {404, 405}


def test_without_the_flag_no_page_offers_one(owner: TestClient, group: str, topic: str) -> None:
    assert "/change/" not in owner.get("/group", params={"name": group}).text
    assert "/change/" not in owner.get("/topic", params={"name": topic}).text


def test_a_get_and_other_methods_change_nothing(allowed: TestClient, client: msgtx.Client, topic: str) -> None:
    address = previewed(allowed, "topics delete", {"topic": topic})
    for _ in range(2):
        assert allowed.get(address).status_code == 200
    assert allowed.request("DELETE", address).status_code == 405
    assert topic in client.topics.list()


def test_every_change_has_a_form_that_names_its_inputs(allowed: TestClient) -> None:
    assert {*OFFERED.values()} == {*CHANGES}
    for path in OFFERED:
        text = allowed.get(f"/{path}").text
        for name in re.findall(r'<(?:input|select) id="(\w+)"', text[text.index('class="change"') :]):
            assert f'<label for="{name}">' in text


@pytest.mark.parametrize(
    ("verb", "fixed", "given"),
    [
        ("groups delete", {"group": ""}, {}),
        ("groups delete", {"group": "no such group"}, {}),
        ("groups delete", {"group": "x" * 5_000}, {}),
        ("groups reset-offsets", {"group": "g"}, {"target": "offset", "value": "x"}),
        ("groups reset-offsets", {"group": "g"}, {"target": "duration", "value": "-"}),
        ("groups reset-offsets", {"group": "g"}, {"target": "datetime", "value": ""}),
        ("groups reset-offsets", {"group": "g"}, {"target": "nowhere"}),
        ("groups reset-offsets", {"group": "g"}, {"target": "earliest", "topics": "a:b:c"}),
        ("groups reset-offsets", {"group": "g"}, {"target": "earliest", "topics": "nothing"}),
        ("groups delete-offsets", {"group": "g"}, {"topics": " "}),
        ("transactions abort", {"transaction_id": "1.2"}, {}),
        ("transactions complete", {"token": "1.2.3@x"}, {"decision": "commit"}),
        ("shares redrive", {"group": "g"}, {"max_records": "10001"}),
        ("topics delete-records", {"topic": "nothing"}, {"partition": "0", "before": "1"}),
        ("topics delete-records", {"topic": "nothing"}, {"partition": "0"}),
        ("topics delete", {"topic": "a\0b"}, {}),
    ],
)
def test_what_cannot_be_previewed_is_said_on_the_form(
    allowed: TestClient, verb: str, fixed: dict[str, str], given: dict[str, str]
) -> None:
    answer = asked_for(allowed, verb, fixed, **given)
    assert 400 <= answer.status_code < 500
    assert 'role="alert"' in answer.text


# ── tokens ──


@pytest.mark.parametrize("given", [None, "", "0" * 64, "é", "the form's"])
def test_a_press_without_its_token_is_refused(
    allowed: TestClient, client: msgtx.Client, caplog: pytest.LogCaptureFixture, topic: str, given: str | None
) -> None:
    address = previewed(allowed, "topics delete", {"topic": topic})
    if given == "the form's":  # it is of another address
        given = token_in(allowed.get(f"/change/topics-delete?topic={topic}").text)
    answer = allowed.post(address, data={} if given is None else {"token": given}, headers=ORIGIN)
    assert answer.status_code == 403
    assert "refused a change without its token" in caplog.text
    assert topic in client.topics.list()


def test_a_token_is_of_one_preview_and_one_form(allowed: TestClient, client: msgtx.Client, topic: str, group: str) -> None:
    first, second = (previewed(allowed, "topics delete", {"topic": topic}) for _ in range(2))
    stolen = token_in(allowed.get(first).text)
    assert allowed.post(second, data={"token": stolen}, headers=ORIGIN).status_code == 403
    form = allowed.get("/change/topics-delete?topic=other").text
    other = f"/change/topics-delete?topic={topic}"
    assert allowed.post(other, data={"token": token_in(form)}, headers=ORIGIN).status_code == 403
    assert (
        allowed.post(first.replace("topics-delete", "groups-delete"), data={"token": stolen}, headers=ORIGIN).status_code
        == 403
    )
    assert topic in client.topics.list()


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://127.0.0.1:9000"])
def test_a_press_from_another_origin_is_refused(
    allowed: TestClient, client: msgtx.Client, topic: str, origin: str | None
) -> None:
    address = previewed(allowed, "topics delete", {"topic": topic})
    given = {"token": token_in(allowed.get(address).text)}
    answer = allowed.post(address, data=given, headers={} if origin is None else {"origin": origin})
    assert answer.status_code == 403
    assert topic in client.topics.list()


def test_a_preview_is_of_one_session(browse: Browse, roles: Roles, client: msgtx.Client, topic: str) -> None:
    role = roles.make("admin", "observe")
    ada = browse(allow_changes=True)
    sign_in(ada, role)
    address = previewed(ada, "topics delete", {"topic": topic})
    given = {"token": token_in(ada.get(address).text)}
    own = dict(ada.cookies)
    ada.cookies.clear()
    sign_in(ada, role)  # another session of the same role
    assert ada.get(address).status_code == 404
    assert ada.post(address, data=given, headers=ORIGIN).status_code == 403
    ada.cookies.clear()
    assert ada.post(address, data=given, headers=ORIGIN).status_code == 401
    assert ada.get(address).headers["location"].startswith("/sign-in?next=change")
    assert topic in client.topics.list()
    ada.cookies.update(own)
    assert "Done" in confirm(ada, address).text


def test_a_preview_is_of_one_person(browse: Browse, client: msgtx.Client, topic: str) -> None:
    browser = browse(trust_header="X-User", allow_changes=True)
    browser.headers["x-user"] = "ada"
    address = previewed(browser, "topics delete", {"topic": topic})
    given = {"token": token_in(browser.get(address).text)}
    browser.headers["x-user"] = "grace"
    assert browser.get(address).status_code == 404
    assert browser.post(address, data=given, headers=ORIGIN).status_code == 403
    assert topic in client.topics.list()


def test_who_is_not_signed_in_comes_to_the_form_by_the_sign_in(browse: Browse, roles: Roles) -> None:
    browser = browse(allow_changes=True)
    answer = browser.get("/change/topics-delete?topic=x")
    assert answer.headers["location"] == "/sign-in?next=change%2Ftopics-delete%3Ftopic%3Dx"
    assert browser.post("/change/topics-delete?topic=x", headers=ORIGIN).status_code == 401
    answer = sign_in(browser, roles.make("admin"), next="change/topics-delete?topic=x")
    assert answer.headers["location"] == "/change/topics-delete?topic=x"


# ── once ──


def test_a_second_press_gets_the_result_of_the_first(
    allowed: TestClient, client: msgtx.Client, group: str, topic: str
) -> None:
    address = previewed(allowed, "groups reset-offsets", {"group": group}, target="shift", value="-1")
    shown = allowed.get(address).text
    for _ in range(2):
        answer = allowed.post(address, data={"token": token_in(shown)}, headers=ORIGIN)
        assert answer.headers["location"] == address
        assert "Done" in allowed.get(address).text
    assert client.admin.groups.offsets(group)[TopicPartition(topic, 0)].offset == 1


def test_a_double_click_makes_the_change_once(
    allowed: TestClient, client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, go = [], threading.Event()
    real = changing.apply

    def slow(*arguments: Any) -> Any:
        made.append(arguments)
        assert go.wait(30)
        return real(*arguments)

    monkeypatch.setattr(changing, "apply", slow)
    address = previewed(allowed, "topics delete", {"topic": topic})
    given = {"token": token_in(allowed.get(address).text)}
    answers: list[Any] = []
    presses = [
        threading.Thread(target=lambda: answers.append(allowed.post(address, data=given, headers=ORIGIN))) for _ in range(3)
    ]
    for each in presses:
        each.start()
    wait_until(lambda: bool(made), "a press is under way")
    assert "Under way" in allowed.get(address).text
    go.set()
    for each in presses:
        each.join(30)
    assert [answer.headers["location"] for answer in answers] == [address] * 3
    assert len(made) == 1
    assert topic not in client.topics.list()


def test_changes_of_a_role_take_turns_and_many_are_refused(
    allowed: TestClient, client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go = [], threading.Event()
    real = changing.apply

    def slow(*arguments: Any) -> Any:
        began.append(arguments)
        assert go.wait(30)
        return real(*arguments)

    monkeypatch.setattr(changing, "apply", slow)
    monkeypatch.setattr(changing, "MOST_PREVIEWS", 2)
    names = [topic, unique("topic")]
    client.topics.create(names[1])
    presses = []
    for name in names:
        address = previewed(allowed, "topics delete", {"topic": name})
        given = {"token": token_in(allowed.get(address).text)}
        presses.append(threading.Thread(target=allowed.post, args=[address], kwargs={"data": given, "headers": ORIGIN}))
        presses[-1].start()
        wait_until(lambda: "Under way" in allowed.get(address).text, "it was pressed")  # noqa: B023 - asked at once
    assert len(began) == 1
    answer = asked_for(allowed, "topics delete", {"topic": topic})
    assert (answer.status_code, "under way" in answer.text) == (429, True)
    go.set()
    for each in presses:
        each.join(30)
    assert len(began) == 2
    assert {*names} & {*client.topics.list()} == set()


def test_previews_of_a_role_take_turns(allowed: TestClient, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take no more threads than the role has connections, so that other roles' pages find some."""
    real, go_on = changing.preview, threading.Event()
    running: list[int] = []
    peaks: list[int] = []

    def slow(*given: Any, **named: Any) -> Any:
        running.append(1)
        peaks.append(len(running))
        assert go_on.wait(PATIENCE_SECONDS)
        running.pop()
        return real(*given, **named)

    monkeypatch.setattr(changing, "preview", slow)
    form = allowed.get(f"/change/topics-delete?topic={topic}").text

    def ask() -> int:
        answer = allowed.post(action(form), data={"token": token_in(form)}, headers=ORIGIN)
        return int(answer.status_code)

    with ThreadPoolExecutor(2 * CONNECTIONS) as threads:
        asked = [threads.submit(ask) for _ in range(2 * CONNECTIONS)]
        wait_until(lambda: len(running) == CONNECTIONS, "as many run as the role has connections")
        go_on.set()
        assert {each.result(PATIENCE_SECONDS) for each in asked} == {303}
    assert max(peaks) == CONNECTIONS


def test_an_answer_that_was_lost_is_no_refusal(allowed: TestClient, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> Any:
        raise errors.DatabaseUnavailable("the connection is lost")

    monkeypatch.setattr(changing, "apply", lost)
    answer = confirm(allowed, previewed(allowed, "topics delete", {"topic": topic}))
    assert (answer.status_code, "look whether the change was made" in answer.text) == (503, True)


def test_an_outdated_preview_is_refused_and_shown_anew(
    allowed: TestClient, client: msgtx.Client, group: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = previewed(allowed, "groups reset-offsets", {"group": group}, target="earliest")
    shown = allowed.get(address).text
    client.admin.groups.reset(group, 1, topics=[topic])
    for _ in range(2):
        allowed.post(address, data={"token": token_in(shown)}, headers=ORIGIN)
        anew = str(allowed.get(address).headers["location"])
        assert anew != address
    assert "This is what it would do now." in allowed.get(anew).text
    assert client.admin.groups.offsets(group)[TopicPartition(topic, 0)].offset == 1
    assert "the preview is outdated" in caplog.text
    assert "Done" in confirm(allowed, anew).text
    assert client.admin.groups.offsets(group)[TopicPartition(topic, 0)].offset == 0


def test_what_has_gone_since_the_preview_is_said(allowed: TestClient, client: msgtx.Client, topic: str) -> None:
    address = previewed(allowed, "topics delete", {"topic": topic})
    client.topics.delete(topic)
    answer = confirm(allowed, address)
    assert answer.status_code == 404
    assert topic in answer.text


def test_a_console_that_was_restarted_knows_no_preview(browse: Browse, client: msgtx.Client, topic: str) -> None:
    before, after = (browse(sign_in=False, allow_changes=True) for _ in range(2))
    address = previewed(before, "topics delete", {"topic": topic})
    given = {"token": token_in(before.get(address).text)}
    after.cookies.update(dict(before.cookies))
    assert after.post(address, data=given, headers=ORIGIN).status_code == 403
    assert "look whether the change was made" in after.get(address).text
    assert topic in client.topics.list()


def test_previews_of_a_role_are_bounded_and_push_out_only_its_own(browse: Browse, client: msgtx.Client, topic: str) -> None:
    browser = browse(trust_header="X-User", allow_changes=True)
    browser.headers["x-user"] = "ada"
    hers = previewed(browser, "topics delete", {"topic": topic})
    browser.headers["x-user"] = "grace"
    made = [previewed(browser, "topics delete", {"topic": topic}) for _ in range(MOST_PREVIEWS + 1)]
    assert browser.get(made[0]).status_code == 404
    assert browser.get(made[1]).status_code == 200
    browser.headers["x-user"] = "ada"
    assert browser.get(hers).status_code == 200


def test_a_preview_of_yesterday_is_not_kept(allowed: TestClient, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = previewed(allowed, "topics delete", {"topic": topic})
    monkeypatch.setattr(changing, "PREVIEW_SECONDS", 0)
    assert allowed.get(address).status_code == 404


# ── rights, members, names ──


def test_the_role_decides_and_the_refusal_is_said(
    browse: Browse, roles: Roles, client: msgtx.Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    role = roles.make("observe")
    browser = browse(allow_changes=True)
    sign_in(browser, role)
    answer = confirm(browser, previewed(browser, "topics delete", {"topic": topic}))
    assert answer.status_code == 403
    assert "right" in answer.text
    assert topic in client.topics.list()
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert f"'{role}' (role '{role}') from 127.0.0.1 confirmed: msgtx topics delete {topic}" in lines
    roles.grant(role, "admin")
    assert "Done" in confirm(browser, previewed(browser, "topics delete", {"topic": topic})).text


def dead_letters(client: msgtx.Client, topic: str) -> str:
    """Make a share group with the topic's records as dead letters."""
    group = unique("share")
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as member:
        for record in member.poll(10.0):
            member.acknowledge(record, Acknowledgement.REJECT)
        member.commit()
    client.sweep()
    return group


@pytest.mark.long
def test_each_change_needs_the_right_that_its_preview_names(
    browse: Browse, roles: Roles, client: msgtx.Client, topic: str, group: str
) -> None:
    share, cut, name, mirror = dead_letters(client, topic), unique("cut"), unique("id"), unique("mirror")
    with client.runtime.engine.connection() as connection:
        new_mirror(connection, mirror)
    client.snapshots.save(cut, client.snapshots.take([topic]).snapshot)
    with client.producer(transactional_id=name) as producer, producer.transaction() as transaction:
        producer.send(topic, b"a")
        prepared = transaction.prepare()
    with client.producer(transactional_id=unique("id")) as producer:
        hanging = producer.begin_transaction().id
        producer.send(topic, b"a")
        producer.flush(30)
        asked: list[tuple[str, dict[str, str], dict[str, str]]] = [
            ("transactions abort", {"transaction_id": str(hanging)}, {}),
            ("transactions complete", {"token": str(prepared)}, {"decision": "commit"}),
            ("transactions fence", {"transactional_id": name}, {}),
            ("groups reset-offsets", {"group": group}, {"target": "earliest", "topics": topic}),
            ("groups delete-offsets", {"group": group}, {"topics": topic}),
            ("groups delete", {"group": group}, {}),
            ("shares redrive", {"group": share}, {"max_records": "1"}),
            ("shares reset-offsets", {"group": share}, {"target": "earliest", "topics": topic}),
            ("shares delete", {"group": share}, {}),
            ("mirror reset", {"name": mirror}, {}),
            ("offsets delete-snapshot", {"name": cut}, {}),
            ("topics delete-records", {"topic": topic}, {"partition": "0", "before": "1"}),
            ("topics delete", {"topic": topic}, {}),
        ]
        assert [verb for verb, _, _ in asked] == sorted(CHANGES, key=[verb for verb, _, _ in asked].index)
        guest = browse(allow_changes=True)
        sign_in(guest, roles.make("observe"))
        for verb, fixed, given in asked:
            answer = asked_for(guest, verb, fixed, **given)
            if answer.status_code == 303:
                answer = confirm(guest, answer.headers["location"])
            assert (answer.status_code, "Done" in answer.text) == (403, False), verb
        for verb, fixed, given in asked:
            if verb == "offsets delete-snapshot":
                continue  # it takes the role that saved it
            able = browse(allow_changes=True)
            ids = [f"produce:transactional_id:{name}"] if verb == "transactions complete" else []
            sign_in(able, roles.make("observe", "consume", CHANGES[verb].right, *ids))
            answer = confirm(able, previewed(able, verb, fixed, **given))
            assert "Done" in answer.text, (verb, re.findall(r'role="alert">[^<]*', answer.text))
            if verb == "groups delete-offsets":
                client.admin.groups.reset(group, 1, topics=[topic])


def test_a_group_with_members_is_not_offered_to_be_reset(allowed: TestClient, client: msgtx.Client, topic: str) -> None:
    group = unique("group")
    with client.consumer(topic, group=group) as consumer:
        consumer.poll(0.0)
        address = previewed(allowed, "groups reset-offsets", {"group": group}, target="earliest", topics=topic)
        shown = allowed.get(address).text
        assert "1 member" in shown
        assert '<form class="change' not in shown


@pytest.mark.parametrize(
    "form", ["<script>alert('{}')</script>", "\u202e{}", "a\nb {}", "{}' --all; rm -rf", "-{}", "{}?x=1&y#z"]
)
def test_a_hostile_name_is_a_name(
    allowed: TestClient, client: msgtx.Client, caplog: pytest.LogCaptureFixture, topic: str, form: str
) -> None:
    caplog.set_level(logging.INFO, "msgtx.console")
    group = form.format(unique("group"))
    client.admin.groups.reset(group, 1, topics=[topic])
    page = allowed.get("/group", params={"name": group}).text
    assert "/change/groups-delete?" in page
    address = previewed(allowed, "groups delete", {"group": group})
    for text in (allowed.get(address).text, confirm(allowed, address).text):
        assert "<script>alert" not in text
        assert "\u202e" not in text
    assert group not in {each.group for each in client.admin.groups.list()}
    lines = [each.getMessage() for each in caplog.records if "confirmed" in each.getMessage()]
    assert len(lines) == 1
    assert lines[0].isprintable()


def test_the_console_below_a_path_leads_to_itself(client: msgtx.Client, topic: str) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from msgtx import console

    outer = Starlette(routes=[Mount("/console", console.app(client, sign_in=False, allow_changes=True))])
    with TestClient(outer, base_url=HOST, follow_redirects=False) as browser:
        form = browser.get(f"/console/change/topics-delete?topic={topic}").text
        answer = browser.post(action(form), data={"token": token_in(form)}, headers=ORIGIN)
        assert answer.headers["location"].startswith("/console/change/topics-delete/")
        assert "Done" in confirm(browser, answer.headers["location"]).text
    assert topic not in client.topics.list()
