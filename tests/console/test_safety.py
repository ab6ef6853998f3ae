"""Who is let in, from where, and what an answer allows a browser to do."""

import socket
from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

import msgtx
from msgtx import console
from msgtx.cli.commands.console import address_of, listen
from msgtx.console import viewers
from msgtx.console.guard import PROTECTION
from msgtx.console.pages import PAGES
from msgtx.console.viewers import MOST_FAILURES, SESSION_IDLE_SECONDS, SESSION_SECONDS, Attempts, Sessions, open_client
from msgtx.errors import ConfigError, LoginRefused
from tests.console.conftest import HOST, Browse, sign_in, token
from tests.databases import PATIENCE_SECONDS, Connection, wait_until
from tests.refusals import refuses
from tests.roles import PASSWORD, Roles

# ── addresses ──


def has_ipv6() -> bool:
    """Return whether this machine has the address ::1. Without one, a socket can be bound to :: all the same."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="the machine has no address of IPv6")
def test_an_address_of_ipv6_takes_no_connection_of_ipv4() -> None:
    """`--host ::` would let in whoever a firewall keeps from the port by its rules for IPv4."""
    with listen("::", 0) as listening:
        port = listening.getsockname()[1]
        assert address_of(listening) == f"http://[::]:{port}/"
        assert listening.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
        socket.create_connection(("::1", port), PATIENCE_SECONDS).close()
    with listen("127.0.0.1", 0) as listening:
        assert address_of(listening).startswith("http://127.0.0.1:")


# ── without a session ──


def test_the_consoles_own_role_needs_no_right_to_anything_that_there_is(roles: Roles) -> None:
    with (
        msgtx.connect(roles.url_of(roles.make("observe:no-topic-has-this-name"))) as base,
        TestClient(console.app(base), base_url=HOST, follow_redirects=False) as browser,
    ):
        sign_in(browser, roles.make("observe"))
        assert browser.get("/topics.json").json() == {"topics": []}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_leads_to_the_sign_in_and_its_twin_and_updates_are_refused(browse: Browse, page: str) -> None:
    browser = browse()
    answer = browser.get(f"/{page}?name=x")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/sign-in?next={page}%3Fname%3Dx"
    assert browser.get(f"/{page}.json").status_code == 401
    assert browser.get(f"/{page}.live").status_code == 401


@pytest.mark.parametrize("cookie", ["", "x" * 43, "../../etc/passwd", "%C3%A9", "a" * 5_000])
def test_a_forged_cookie_is_nobodys(browse: Browse, cookie: str) -> None:
    browser = browse()
    headers = {"cookie": f"msgtx-console-8123={cookie}"}
    assert browser.get("/topics.json", headers=headers).status_code == 401


# ── signing in ──


def test_a_role_signs_in_sees_pages_and_signs_out(browse: Browse, roles: Roles) -> None:
    role = roles.make("observe")
    browser = browse()
    answer = sign_in(browser, role, next="topics?filter=a")
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics?filter=a")
    kept = answer.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=strict" in kept
    assert "Secure" not in kept  # without TLS a browser would not send it back
    page = browser.get("/topics")
    assert page.status_code == 200
    assert role in page.text
    cookie = dict(browser.cookies)
    answer = browser.post("/sign-out", data={"token": token(page.text)}, headers={"origin": HOST})
    assert answer.headers["location"] == "/sign-in"
    browser.cookies.update(cookie)
    assert browser.get("/topics.json").status_code == 401  # the cookie, stolen before, is worth nothing


def test_the_cookie_is_a_new_one_after_a_sign_in(browse: Browse, roles: Roles) -> None:
    browser = browse()
    browser.get("/sign-in")
    before = dict(browser.cookies)
    sign_in(browser, roles.make("observe"))
    assert dict(browser.cookies).keys() == before.keys()
    assert dict(browser.cookies) != before


def test_a_cookie_is_secure_behind_tls(browse: Browse) -> None:
    assert "Secure" in browse(base_url="https://127.0.0.1:8123").get("/sign-in").headers["set-cookie"]
    behind = browse().get("/sign-in", headers={"x-forwarded-proto": "https"})
    assert "Secure" in behind.headers["set-cookie"]
    untrusted = browse(peer="192.0.2.7").get("/sign-in", headers={"x-forwarded-proto": "https"})
    assert "Secure" not in untrusted.headers["set-cookie"]


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example/", "sign-in", "\\\\evil", "overview.json", "a\nb"]
)
def test_a_sign_in_leads_nowhere_else(browse: Browse, roles: Roles, wanted: str) -> None:
    answer = sign_in(browse(), roles.make("observe"), next=wanted)
    assert answer.headers["location"] == "/overview"


@pytest.mark.parametrize(
    ("role", "password"),
    [
        ("nobody-has-this-name", "x"),
        ("postgres", ""),
        ("", "x"),
        ("x' host='127.0.0.2", "x"),
        ("zero\0byte", "x"),
        ("\u202egnp", "x\ud7ff"),
    ],
)
def test_what_is_no_role_with_its_password_is_refused(browse: Browse, role: str, password: str) -> None:
    browser = browse()
    answer = sign_in(browser, role, password)
    assert 400 <= answer.status_code <= 403
    assert "\u202e" not in answer.text
    assert browser.get("/topics.json").status_code == 401


def test_a_wrong_password_is_refused_and_after_some_the_right_one_too(
    browse: Browse, roles: Roles, caplog: pytest.LogCaptureFixture
) -> None:
    role = roles.make("observe")
    browser = browse()
    for _ in range(MOST_FAILURES["peer"]):
        assert sign_in(browser, role, "wrong").status_code == 403
    answer = sign_in(browser, role)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert f"refused to sign '{role}' in from 127.0.0.1" in caplog.text
    assert "wrong" not in caplog.text


def test_attempts_are_counted_for_each_address_and_role_and_forgotten() -> None:
    now = 0.0
    attempts = Attempts(clock=lambda: now)
    for number in range(MOST_FAILURES["role"]):
        assert attempts.seconds_to_wait(peer="another", role="ada") == 0
        attempts.failed(peer=f"peer {number}", role="ada")
    assert attempts.seconds_to_wait(peer="another", role="ada") == viewers.WINDOW_SECONDS
    assert attempts.seconds_to_wait(peer="peer 1", role="grace") == 0
    now = viewers.WINDOW_SECONDS
    assert attempts.seconds_to_wait(peer="another", role="ada") == 0


@pytest.mark.parametrize(
    ("steps", "is_over"),
    [
        ([SESSION_IDLE_SECONDS - 1], False),
        ([SESSION_IDLE_SECONDS], True),
        ([SESSION_IDLE_SECONDS - 1] * 2, False),
        ([SESSION_IDLE_SECONDS - 1] * (SESSION_SECONDS // (SESSION_IDLE_SECONDS - 1) + 1), True),
    ],
)
def test_a_session_ends_when_it_is_idle_and_when_it_is_old(
    client: msgtx.Client, roles: Roles, steps: list[float], is_over: bool
) -> None:
    now = 0.0
    sessions = Sessions(client.runtime.engine, clock=lambda: now)
    cookie = sessions.begin(roles.make("observe"), PASSWORD)
    viewer = sessions.find(cookie)
    assert viewer is not None
    for step in steps:
        now += step
        found = sessions.find(cookie)
    assert (found is None) is is_over
    assert viewer.client.closed is is_over
    sessions.close()


def test_a_stream_does_not_keep_a_session_alive(client: msgtx.Client, roles: Roles) -> None:
    now = 0.0
    sessions = Sessions(client.runtime.engine, clock=lambda: now)
    cookie = sessions.begin(roles.make("observe"), PASSWORD)
    now = SESSION_IDLE_SECONDS - 1
    assert sessions.find(cookie, touch=False) is not None
    now = SESSION_IDLE_SECONDS
    assert sessions.find(cookie, touch=False) is None


def test_sessions_of_a_role_share_two_connections(client: msgtx.Client, roles: Roles, connection: Connection) -> None:
    role = roles.make("observe")
    sessions = Sessions(client.runtime.engine)
    cookies = [sessions.begin(role, PASSWORD) for _ in range(3)]
    found = [viewer.client for viewer in map(sessions.find, cookies) if viewer is not None]
    assert found == [found[0]] * 3
    assert found[0].runtime.engine.pool_size == 2
    sessions.end(cookies[0])
    assert not found[0].closed
    sessions.close()
    assert found[0].closed
    count = "select count(*) from pg_stat_activity where usename = %s"
    wait_until(lambda: connection.execute(count, [role]).fetchone() == (0,), "its connections are closed")


def test_a_role_whose_password_changes_has_new_connections(client: msgtx.Client, roles: Roles) -> None:
    role = roles.make("observe")
    sessions = Sessions(client.runtime.engine)
    before = sessions.begin(role, PASSWORD)
    roles.sql(f"alter role {role} password 'other'")
    with refuses(LoginRefused):
        sessions.begin(role, PASSWORD)
    sessions.begin(role, "other")
    viewer = sessions.find(before)
    assert viewer is not None
    assert viewer.client.topics.list() == []
    sessions.close()


def test_a_connection_of_the_console_proves_its_password_and_has_a_limit(client: msgtx.Client, roles: Roles) -> None:
    with open_client(client.runtime.engine, role=roles.make("observe"), password=PASSWORD) as opened:
        assert opened.runtime.engine.parameters["require_auth"] == "scram-sha-256"
        with opened.runtime.engine.connection() as own:
            assert own.execute("show statement_timeout").fetchone() == ("5s",)
            assert own.execute("show application_name").fetchone() == ("msgtx console",)


# ── a proxy that signs people in ──


def test_a_name_in_a_header_counts_from_a_trusted_proxy_alone(browse: Browse) -> None:
    header = {"x-user": "ada"}
    assert "ada" in browse(trust_header="X-User").get("/topics", headers=header).text
    assert browse(trust_header="X-User", peer="192.0.2.7").get("/topics", headers=header).status_code == 401
    settings = {"trust_header": "X-User", "trusted_proxies": ["192.0.2.0/24"]}
    assert browse(**settings, peer="192.0.2.7").get("/topics", headers=header).status_code == 200
    assert browse(**settings).get("/topics", headers=header).status_code == 401


@pytest.mark.parametrize("given", [[], [("x-user", "")], [("x-user", "ada"), ("x-user", "grace")]])
def test_a_proxy_that_names_nobody_or_two_is_refused(browse: Browse, given: list[tuple[str, str]]) -> None:
    assert browse(trust_header="X-User").get("/topics", headers=given).status_code == 401


def test_attempts_behind_a_proxy_are_counted_by_the_address_that_it_names(browse: Browse) -> None:
    """The last one in the header: those in front of it come from the browser. Of nobody else, the header counts."""
    behind, direct = browse(peer="192.0.2.7", trusted_proxies=["192.0.2.7"]), browse(peer="192.0.2.8")
    for browser, is_proxy in ((behind, True), (direct, False)):
        for number in range(MOST_FAILURES["peer"]):
            browser.headers["x-forwarded-for"] = f"203.0.113.{number}, 198.51.100.1"
            assert sign_in(browser, f"nobody-{number}", "wrong").status_code == 403
        assert sign_in(browser, "nobody", "wrong").status_code == 429
        browser.headers["x-forwarded-for"] = "198.51.100.1, 198.51.100.2"
        assert sign_in(browser, "nobody", "wrong").status_code == (403 if is_proxy else 429)
        browser.headers["x-forwarded-for"] = "198.51.100.2, no address"
        assert sign_in(browser, "nobody", "wrong").status_code == (403 if is_proxy else 429)


def test_a_proxy_has_an_address(client: msgtx.Client) -> None:
    with refuses(ConfigError, name="trusted_proxies"):
        console.app(client, trust_header="X-User", trusted_proxies=["proxy.example"])


# ── hosts, origins, methods ──


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("127.0.0.1:8123", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("[::1]:8123", True),
        ("192.0.2.1", True),  # an address cannot be made to lead elsewhere
        ("console.example", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8123", False),
        ("evil.example#127.0.0.1", False),
        ("user@localhost", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_only_known_hosts_are_answered(browse: Browse, host: str, is_known: bool) -> None:
    answer = browse(sign_in=False, hosts=["Console.example"]).get("/topics", headers={"host": host})
    assert answer.status_code == (200 if is_known else 421)


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://127.0.0.1:9000", "http://localhost:8123"])
@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
def test_a_form_of_another_origin_is_refused(
    browse: Browse, roles: Roles, caplog: pytest.LogCaptureFixture, path: str, origin: str | None
) -> None:
    browser = browse()
    form = {"role": roles.make("observe"), "password": PASSWORD, "token": token(browser.get("/sign-in").text)}
    answer = browser.post(path, data=form, headers={} if origin is None else {"origin": origin})
    assert answer.status_code == 403
    assert "another origin" in caplog.text
    assert browser.get("/topics.json").status_code == 401


@pytest.mark.parametrize("given", ["", "0" * 64, "é"])
def test_a_form_without_its_token_is_refused(browse: Browse, roles: Roles, given: str) -> None:
    browser = browse()
    browser.get("/sign-in")
    form = {"role": roles.make("observe"), "password": PASSWORD, "token": given}
    assert browser.post("/sign-in", data=form, headers={"origin": HOST}).status_code == 403


def test_a_form_is_bounded(browse: Browse) -> None:
    browser = browse()
    given = token(browser.get("/sign-in").text)
    large = browser.post("/sign-in", data={"token": given, "role": "x" * 10_000}, headers={"origin": HOST})
    assert large.status_code == 413
    many = {"token": given, **{f"f{number}": "" for number in range(20)}}
    assert browser.post("/sign-in", data=many, headers={"origin": HOST}).status_code == 400


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(owner: TestClient, method: str) -> None:
    assert owner.request(method, "/topics").status_code == 405


@pytest.mark.parametrize("page", PAGES)
def test_a_page_changes_nothing_by_a_post(owner: TestClient, page: str) -> None:
    assert owner.post(f"/{page}", headers={"origin": HOST}).status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/static/../application.py",
        "/static/%2e%2e/application.py",
        "/static/..%2f..%2fpool.py",
        "/static//etc/passwd",
        "/static/vendor/",
        "/templates/base.html",
    ],
)
def test_only_static_files_are_files(owner: TestClient, path: str) -> None:
    assert owner.get(path).status_code == 404


# ── what a browser may do with an answer ──


@pytest.mark.parametrize(
    "ask",
    [
        lambda browser: browser.get("/topics"),
        lambda browser: browser.get("/topics.json"),
        lambda browser: browser.get("/nothing"),
        lambda browser: browser.get("/static/console.css"),
        lambda browser: browser.get("/topics", headers={"host": "evil.example"}),
        lambda browser: browser.post("/sign-in"),
    ],
)
def test_every_answer_protects_its_reader(owner: TestClient, ask: Callable[[TestClient], object]) -> None:
    headers = ask(owner).headers  # type: ignore[attr-defined]
    assert {name: headers.get(name) for name in PROTECTION} == PROTECTION
    assert headers["cache-control"] == "no-store" or headers["content-type"].startswith("text/css")
    assert "unsafe" not in headers["content-security-policy"]


@pytest.mark.parametrize("asked", ["a\r\nset-cookie: x=y", "%0d%0aset-cookie:%20x=y"])
def test_no_parameter_becomes_a_header(browse: Browse, asked: str) -> None:
    answer = browse().get("/topics", params={"filter": asked})
    assert "x=y" not in answer.headers.get("set-cookie", "")
