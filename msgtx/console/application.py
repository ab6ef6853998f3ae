"""The application: addresses, signing in and out, pages, their twins and their live updates."""

import asyncio
import functools
import ipaddress
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakKeyDictionary

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from msgtx import errors
from msgtx.client import Client
from msgtx.console.changing import OFFERED, Changing, offers
from msgtx.console.drawing import VERSION, draw, draw_live, page_address, page_context
from msgtx.console.guard import NOT_OURS, Guard, is_address, is_token, peer_of, token_of
from msgtx.console.live import Live
from msgtx.console.page import Page, Query, status_of
from msgtx.console.pages import PAGES
from msgtx.console.viewers import CONNECTIONS, Attempts, Sessions, Viewer, open_client

log = logging.getLogger("msgtx.console")
FORM_BYTES: Final = 8 * 1024  # of a form: a name and a password
FORM_FIELDS: Final = 8
STATIC: Final = Path(__file__).with_name("static")
STATIC_SECONDS: Final = 3_600  # that a browser keeps the style and the script; their address holds the version


def app(
    client: Client,
    *,
    sign_in: bool = True,
    trust_header: str | None = None,
    trusted_proxies: Iterable[str] = (),
    hosts: Iterable[str] = (),
    allow_changes: bool = False,
) -> Guard:
    """Return the console of a client's database, to be served or mounted.

    Everybody signs in with a PostgreSQL role, and sees what that role may see. Without `sign_in`, everybody sees what the
    role of `client` may see. `trust_header`: a proxy has signed people in, and sends their name in this header; only
    requests from `trusted_proxies` (addresses or networks; default: this machine) are answered, with the role of `client`.
    Of such a proxy, `X-Forwarded-Proto` counts, too, and of one that is named the last address in `X-Forwarded-For`.
    `hosts`: names under which the console answers, beside addresses and `localhost`. `allow_changes`: pages offer to abort,
    reset, redrive and delete, as far as the role may, each with a preview. Raise `ConfigError`.
    """
    console = _Console(
        client,
        sign_in=sign_in,
        trust_header=trust_header,
        trusted_proxies=trusted_proxies,
        allow_changes=allow_changes,
    )
    return Guard(console.application(), hosts=hosts, end_streams=console.end)


class _Console:
    def __init__(
        self,
        client: Client,
        *,
        sign_in: bool,
        trust_header: str | None,
        trusted_proxies: Iterable[str],
        allow_changes: bool,
    ) -> None:
        client.runtime.require_open()
        self._base = client.runtime.engine
        self._header = trust_header
        self._asks = sign_in and trust_header is None
        named = [_network(each) for each in trusted_proxies]
        self._proxies = named or [_network(each) for each in ("127.0.0.0/8", "::1")]
        self._has_proxies = bool(named)
        self.secret = secrets.token_bytes(32)
        self._sessions = Sessions(self._base)
        self._attempts = Attempts()
        self.live = Live()
        self._turns: WeakKeyDictionary[Client, asyncio.Semaphore] = WeakKeyDictionary()
        self._changing = Changing(self) if allow_changes else None
        self._shared: Client | None = None if self._asks else open_client(self._base)
        self._database = urlsplit(client.url).path.lstrip("/") or "msgtx"
        self._place = urlsplit(client.url).netloc.rpartition("@")[2]

    def application(self) -> Starlette:
        routes: list[Route | Mount] = [
            Route("/", self._home),
            Route("/sign-in", self._sign_in_page, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Mount("/static", _Static(directory=STATIC)),
        ]
        for name in PAGES:
            routes += [
                Route(f"/{name}", functools.partial(self._page, name=name)),
                Route(f"/{name}.json", functools.partial(self._twin, name=name)),
                Route(f"/{name}.live", functools.partial(self._updates, name=name)),
            ]
        if self._changing is not None:
            routes += self._changing.routes()
        return Starlette(
            routes=routes,
            exception_handlers={errors.MsgtxError: self._failed, HTTPException: self._refused},
            lifespan=self._lifespan,
        )

    def end(self) -> None:
        """End what would keep a server that ends waiting. Called in the event loop."""
        self.live.end()
        if self._changing is not None:
            self._changing.stop.set()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(self._sessions.close)
        if self._shared is not None:
            await run_in_threadpool(self._shared.close)

    # ── who looks ──

    def _viewer(self, request: Request, *, touch: bool = True) -> Viewer | None:
        """Return who looks; None: nobody that is known."""
        if self._header is not None:
            assert self._shared is not None
            peer = peer_of(request.scope)
            names = request.headers.getlist(self._header)
            trusted = self._is_proxy(peer)
            if not trusted or len(names) != 1 or not names[0].strip():
                log.warning("refused %s: %s", peer, "no name in the header" if trusted else "no proxy that is trusted")
                return None
            return Viewer(names[0].strip(), self._shared)
        if self._shared is not None:
            return Viewer(self._base.parameters.get("user", "the console's role"), self._shared)
        return self._sessions.find(self.cookie_of(request), touch=touch)

    def required(self, request: Request) -> Viewer:
        """Return who looks. Raise: a redirect to the sign-in for a page, 401 for its twin."""
        viewer = self._viewer(request)
        if viewer is not None:
            return viewer
        root = request.scope.get("root_path", "")
        path = request.url.path.removeprefix(root)
        if not self._asks or path.endswith((".json", ".live")) or request.method == "POST":
            raise HTTPException(401, "sign in first" if self._asks else "the proxy has named nobody")
        wanted = f"{path.lstrip('/')}?{request.url.query}" if request.url.query else path.lstrip("/")
        raise HTTPException(303, headers={"location": page_address(root, "sign-in", next=wanted)})

    def _cookie_name(self, request: Request) -> str:
        """Return the cookie's name: two consoles on one host do not sign each other's people out."""
        return f"msgtx-console-{request.url.port or 0}"

    def cookie_of(self, request: Request) -> str:
        """Return the cookie of the session, or an empty text."""
        return request.cookies.get(self._cookie_name(request), "")

    def _is_secure(self, request: Request) -> bool:
        """Whether the browser came by TLS, here or up to a proxy that is trusted."""
        told = request.headers.get("x-forwarded-proto") == "https" and self._is_proxy(peer_of(request.scope))
        return request.url.scheme == "https" or told

    def _is_proxy(self, peer: str) -> bool:
        return is_address(peer) and any(ipaddress.ip_address(peer) in network for network in self._proxies)

    def peer(self, request: Request) -> str:
        """Return whose attempts to sign in are counted together: a browser's address, also behind a proxy that was named."""
        peer = peer_of(request.scope)
        if not (self._has_proxies and self._is_proxy(peer)):
            return peer
        last = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
        return last if is_address(last) else peer

    # ── signing in and out ──

    def _home(self, request: Request) -> Response:
        return RedirectResponse(page_address(request.scope.get("root_path", ""), "overview"), 303)

    def _sign_in_page(self, request: Request) -> Response:
        if not self._asks or self._viewer(request) is not None:
            return self._home(request)
        return self._form(request, wanted=request.query_params.get("next", ""))

    def _form(self, request: Request, *, wanted: str, status: int = 200, role: str = "", failure: str = "") -> Response:
        cookie = self.cookie_of(request)
        made = "" if cookie else secrets.token_urlsafe(32)
        root = request.scope.get("root_path", "")
        text = draw(
            "sign_in.html",
            {
                "url": functools.partial(page_address, root),
                "token": token_of(self.secret, cookie or made),
                "wanted": wanted,
                "role": role,
                "failure": failure,
                "database": self._database,
                "server": self._place,
                "version": VERSION,
            },
        )
        response = HTMLResponse(text, status)
        if made:
            self.give(request, response, made)
        return response

    def give(self, request: Request, response: Response, cookie: str) -> None:
        response.set_cookie(
            self._cookie_name(request),
            cookie,
            path=request.scope.get("root_path", "") or "/",
            httponly=True,
            samesite="strict",
            secure=self._is_secure(request),
        )

    async def _sign_in(self, request: Request) -> Response:
        form = await self._checked_form(request)
        return await run_in_threadpool(self._signed_in, request, form)

    def _signed_in(self, request: Request, form: Mapping[str, str]) -> Response:
        role, password, wanted = form.get("role", ""), form.get("password", ""), form.get("next", "")
        peer = self.peer(request)
        again = functools.partial(self._form, request, wanted=wanted, role=role)
        if wait := self._attempts.seconds_to_wait(peer=peer, role=role):
            log.warning("too many attempts to sign in from %s as %r", peer, role)
            response = again(status=429, failure=f"Too many attempts. Try again in {wait:.0f} s.")
            response.headers["retry-after"] = f"{wait:.0f}"
            return response
        if not role or not password:
            return again(status=400, failure="Give a role and its password.")
        try:
            cookie = self._sessions.begin(role, password)
        except errors.LoginRefused:
            self._attempts.failed(peer=peer, role=role)
            log.warning("refused to sign %r in from %s", role, peer)
            return again(status=403, failure="The database refuses this role and password.")
        except errors.DatabaseUnavailable as error:
            # Also a server that lets the role in without SCRAM: what it says may name no password, but a way around one.
            self._attempts.failed(peer=peer, role=role)
            log.warning("could not sign %r in from %s: %s", role, peer, error)
            return again(status=503, failure="The database cannot be asked, or does not ask for a password by SCRAM.")
        log.info("%r signed in from %s", role, peer)
        self._sessions.end(self.cookie_of(request))
        root = request.scope.get("root_path", "")
        name = urlsplit(wanted).path if wanted else ""
        known = name in PAGES or (self._changing is not None and name in OFFERED)
        there = f"{root}/{wanted}" if known and wanted.isprintable() else page_address(root, "overview")
        response = RedirectResponse(there, 303)
        self.give(request, response, cookie)
        return response

    async def _sign_out(self, request: Request) -> Response:
        await self._checked_form(request)
        viewer = self._viewer(request)
        await run_in_threadpool(self._sessions.end, self.cookie_of(request))
        if viewer is not None:
            log.info("%r signed out", viewer.name)
        root = request.scope.get("root_path", "")
        response = RedirectResponse(page_address(root, "sign-in"), 303)
        response.delete_cookie(self._cookie_name(request), path=root or "/", httponly=True, samesite="strict")
        return response

    async def _checked_form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form. Raise: 413 for a large one, 403 for one without our token."""
        form = await self.fields(request)
        if not is_token(self.secret, self.cookie_of(request), form.get("token", "")):
            log.warning("refused a form without its token from %s", self.peer(request))
            raise HTTPException(403, NOT_OURS)
        return form

    async def fields(self, request: Request) -> dict[str, str]:
        """Return the fields of a form. Raise 413 for a large one."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES:
                raise HTTPException(413, "the form is too large")
        try:
            return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS))
        except ValueError:
            raise HTTPException(400, "this is no form") from None

    # ── pages ──

    async def _page(self, request: Request, *, name: str) -> Response:
        page, viewer = await self._asked(request, name)
        return HTMLResponse(await run_in_threadpool(self.drawn, request, page, name, viewer))

    async def _twin(self, request: Request, *, name: str) -> Response:
        page, _ = await self._asked(request, name)
        return JSONResponse(await run_in_threadpool(page.json))

    async def _asked(self, request: Request, name: str) -> tuple[Page, Viewer]:
        """Return a page and who asked for it. A role has as many threads as connections; its other pages wait outside."""
        viewer = await run_in_threadpool(self.required, request)
        async with self.turn(viewer):
            return await run_in_threadpool(PAGES[name], viewer.client, Query(request.query_params)), viewer

    def turn(self, viewer: Viewer) -> asyncio.Semaphore:
        """Return what bounds the threads of a role."""
        return self._turns.setdefault(viewer.client, asyncio.Semaphore(CONNECTIONS))

    def _updates(self, request: Request, *, name: str) -> Response:
        viewer = self.required(request)
        if self.live.is_full(viewer.name):
            raise HTTPException(503, "too many pages are open")
        query = Query(request.query_params)
        make: Callable[[], str] = functools.partial(self._fragment, request, name, viewer, query)
        events = self.live.watch(
            (name, str(request.url.query)),
            make,
            lambda: self._viewer(request, touch=False) is not None,
            person=viewer.name,
            role=viewer.client,  # and not its name: one that has signed in anew may have other connections
        )
        return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    def _fragment(self, request: Request, name: str, viewer: Viewer, query: Query) -> str:
        try:
            page = PAGES[name](viewer.client, query)
        except errors.MsgtxError as error:
            passes = status_of(error) not in {400, 404}
            return draw("failure.html", {"failure": str(error), "passes": passes})
        return draw_live(page.template, self._context(request, page, name, viewer))

    def drawn(self, request: Request, page: Page, name: str, viewer: Viewer) -> str:
        """Return a page in its frame."""
        return draw(page.template, self._context(request, page, name, viewer))

    def _context(self, request: Request, page: Page, name: str, viewer: Viewer) -> dict[str, Any]:
        cookie = self.cookie_of(request)
        return page_context(
            request,
            page,
            name,
            viewer=viewer.name,
            database=self._database,
            server=self._place,
            token=token_of(self.secret, cookie) if self._asks else "",
            offered=offers(page) if self._changing is not None else [],
        )

    # ── what goes wrong ──

    def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, errors.MsgtxError)
        return self._told(request, status_of(error), str(error))

    def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 303:
            return Response(status_code=303, headers=error.headers)
        return self._told(request, error.status_code, error.detail)

    def _told(self, request: Request, status: int, words: str) -> Response:
        if request.url.path.endswith(".json"):
            return JSONResponse({"error": words}, status)
        if request.url.path.endswith(".live"):
            return PlainTextResponse(f"{words}\n", status)
        root = request.scope.get("root_path", "")
        text = draw(
            "error.html",
            {"url": functools.partial(page_address, root), "status": status, "failure": words, "version": VERSION},
        )
        return HTMLResponse(text, status)


class _Static(StaticFiles):
    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["cache-control"] = f"public, max-age={STATIC_SECONDS}"
        return response


def _network(text: str) -> "ipaddress.IPv4Network | ipaddress.IPv6Network":
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise errors.ConfigError(f"{text!r} is no address and no network", name="trusted_proxies") from None
