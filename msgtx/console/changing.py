"""Changes from a browser: a form, the preview of what it would do, and a press that confirms this preview.

`GET /change/VERB?…` is the form; its POST makes a preview, kept under a number of its own. `GET /change/VERB/NUMBER`
shows the preview, or what became of it; its POST confirms it. A preview is confirmed once: further presses get the result
of the first one. A token belongs to one address, session and person.
"""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from msgtx import errors
from msgtx.changes import CHANGES, Control, Fields, Preview, apply, preview
from msgtx.client import Client
from msgtx.console.drawing import page_address
from msgtx.console.forms import FORMS, Form
from msgtx.console.guard import NOT_OURS, is_token, token_of
from msgtx.console.page import Page, Query, status_of
from msgtx.console.viewers import Viewer
from msgtx.rows import printable

log = logging.getLogger("msgtx.console")
MOST_PREVIEWS: Final = 10  # of a role: a bound for memory. The oldest one goes, and never another role's
PREVIEW_SECONDS: Final = 15 * 60  # an older one is made anew
ROWS_SHOWN: Final = 200
OFFERED: Final = {f"change/{verb.replace(' ', '-')}": verb for verb in FORMS}  # by their addresses


class Door(Protocol):
    """What the console gives to it."""

    secret: bytes

    def required(self, request: Request) -> Viewer:
        """Return who looks; raise the way to the sign-in."""
        ...

    def cookie_of(self, request: Request) -> str:
        """Return the cookie of the session, or an empty text."""
        ...

    def give(self, request: Request, response: Response, cookie: str) -> None:
        """Set the cookie."""
        ...

    def peer(self, request: Request) -> str:
        """Return the address of a browser."""
        ...

    async def fields(self, request: Request) -> dict[str, str]:
        """Read a form."""
        ...

    def turn(self, viewer: Viewer) -> asyncio.Semaphore:
        """Return what bounds the threads of a role."""
        ...

    def drawn(self, request: Request, page: Page, name: str, viewer: Viewer) -> str:
        """Return a page in its frame."""
        ...


@dataclass(frozen=True, slots=True)
class _Done:
    fields: Fields | None


@dataclass(frozen=True, slots=True)
class _Refused:
    words: str
    status: int
    is_partial: bool  # the change, or a part of it, may have been made


@dataclass(frozen=True, slots=True)
class _Replaced:
    """The preview was outdated; this one shows what would be done now."""

    number: str


@dataclass(slots=True)
class _Kept:
    """A preview. `owner`: its session and person; `fixed`: of the form; `arguments`: as they were given."""

    owner: str
    fixed: Mapping[str, str]
    arguments: Mapping[str, Any]
    preview: Preview
    notice: str = ""
    pressed: "asyncio.Task[_Done | _Refused | _Replaced] | None" = None
    number: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    made: float = field(default_factory=time.monotonic)

    @property
    def runs(self) -> bool:
        """Whether the change is being made."""
        return self.pressed is not None and not self.pressed.done()

    @property
    def is_over(self) -> bool:
        """Whether it is too old."""
        return not self.runs and time.monotonic() - self.made >= PREVIEW_SECONDS


class Changing:
    """The addresses of changes. Its methods run in the event loop: what asks the database runs in a thread."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._kept: dict[str, dict[str, _Kept]] = {}
        # One change of a role at a time: its pages keep the other connection, and others' pages the threads.
        self._turns: WeakKeyDictionary[Client, asyncio.Lock] = WeakKeyDictionary()
        self.stop = threading.Event()  # the server ends: a redrive stops behind its step

    def routes(self) -> list[Route]:
        """Return the addresses."""
        return [
            route
            for path in OFFERED
            for route in (
                Route(f"/{path}", self._ask, methods=["GET"]),
                Route(f"/{path}", self._preview, methods=["POST"]),
                Route(f"/{path}/{{number}}", self._show, methods=["GET"]),
                Route(f"/{path}/{{number}}", self._press, methods=["POST"]),
            )
        ]

    # ── the form ──

    async def _ask(self, request: Request) -> Response:
        viewer = await run_in_threadpool(self._door.required, request)
        return await self._form(request, viewer, dict(request.query_params))

    async def _form(
        self, request: Request, viewer: Viewer, given: Mapping[str, str], *, status: int = 200, failure: str = ""
    ) -> Response:
        path, form = _place(request)
        cookie = self._door.cookie_of(request)
        made = "" if cookie else secrets.token_urlsafe(32)
        fixed = form.fixed(request.query_params)
        view = {
            "inputs": form.inputs,
            "given": given,
            "action": page_address("", path, fixed).lstrip("/"),
            "change_token": token_of(self._door.secret, cookie or made, viewer.name, page_address("", path, fixed)),
            "failure": failure,
        }
        response = HTMLResponse(await self._drawn(request, viewer, fixed, "form", view), status)
        if made:
            self._door.give(request, response, made)
        return response

    async def _preview(self, request: Request) -> Response:
        viewer = await run_in_threadpool(self._door.required, request)
        path, form = _place(request)
        fixed = form.fixed(request.query_params)
        given = await self._checked(request, viewer, page_address("", path, fixed)) | fixed
        try:
            arguments = form.read(Query({each.name: given.get(each.name, "") for each in form.inputs}))
            async with self._door.turn(viewer):
                found = await run_in_threadpool(preview, viewer.client, OFFERED[path], **arguments)
        except errors.MsgtxError as error:
            return await self._form(request, viewer, given, status=status_of(error), failure=str(error))
        kept = _Kept(self._owner(request, viewer), fixed, arguments, found)
        self._keep(viewer, kept)
        return self._to(request, f"{path}/{kept.number}")

    # ── the preview ──

    async def _show(self, request: Request) -> Response:
        viewer = await run_in_threadpool(self._door.required, request)
        path, _ = _place(request)
        kept = self._find(request, viewer)
        address = f"{path}/{kept.number}"
        token = token_of(self._door.secret, self._door.cookie_of(request), viewer.name, page_address("", address))
        view: dict[str, Any] = {
            "preview": kept.preview,
            "rows_shown": ROWS_SHOWN,
            "action": address,
            "change_token": token,
            "notice": kept.notice,
            "again": page_address("", path, kept.fixed).lstrip("/"),
            "right": CHANGES[kept.preview.verb].right,
        }
        if kept.pressed is None:
            return HTMLResponse(await self._drawn(request, viewer, kept.fixed, "preview", view))
        if kept.runs:
            return HTMLResponse(await self._drawn(request, viewer, kept.fixed, "running", view))
        match kept.pressed.result():
            case _Replaced(number):
                return self._to(request, f"{path}/{number}")
            case _Refused(words, status, is_partial):
                view |= {"failure": words, "is_partial": is_partial}
                return HTMLResponse(await self._drawn(request, viewer, kept.fixed, "refused", view), status)
            case _Done(fields):
                return HTMLResponse(await self._drawn(request, viewer, kept.fixed, "done", view | {"fields": fields}))

    async def _press(self, request: Request) -> Response:
        viewer = await run_in_threadpool(self._door.required, request)
        path, _ = _place(request)
        number = request.path_params["number"]
        await self._checked(request, viewer, page_address("", f"{path}/{number}"))
        kept = self._find(request, viewer)
        role = viewer.client.runtime.engine.parameters.get("user", "")
        who = f"{viewer.name!r} (role {role!r}) from {self._door.peer(request)}"
        if kept.pressed is None:
            log.warning("%s confirmed: %s", who, printable(kept.preview.command))
            kept.pressed = asyncio.create_task(self._made(viewer, kept, who))
        else:
            log.info("%s confirmed again, which does nothing: %s", who, printable(kept.preview.command))
        await asyncio.shield(kept.pressed)  # a browser that leaves does not end it
        return self._to(request, f"{path}/{number}")

    async def _made(self, viewer: Viewer, kept: _Kept, who: str) -> _Done | _Refused | _Replaced:
        command = printable(kept.preview.command)
        try:
            result = await self._applied(viewer, kept)
        except errors.MsgtxError as error:
            log.warning("%s had a failure: %s: %s", who, command, printable(str(error)))
            # A redrive is several SQL transactions: those in front of the failed one stay.
            is_partial = kept.preview.verb == "shares redrive" or error.fault is errors.Fault.OUTAGE
            return _Refused(str(error), status_of(error), is_partial)
        if isinstance(result, _Done):
            log.info("%s has changed: %s", who, command)
        else:
            log.warning("%s has changed nothing, the preview is outdated: %s", who, command)
        return result

    async def _applied(self, viewer: Viewer, kept: _Kept) -> _Done | _Replaced:
        try:
            async with self._turns.setdefault(viewer.client, asyncio.Lock()):
                return _Done(await run_in_threadpool(apply, viewer.client, kept.preview, Control(self.stop)))
        except errors.PreviewOutdated as error:
            async with self._door.turn(viewer):
                found = await run_in_threadpool(preview, viewer.client, kept.preview.verb, **kept.arguments)
            anew = _Kept(kept.owner, kept.fixed, kept.arguments, found, notice=str(error))
            self._keep(viewer, anew)
            return _Replaced(anew.number)

    # ── the kept previews, by role ──

    def _keep(self, viewer: Viewer, kept: _Kept) -> None:
        for name, theirs in list(self._kept.items()):
            self._kept[name] = {key: one for key, one in theirs.items() if not one.is_over}
            if not self._kept[name]:
                del self._kept[name]
        own = self._kept.setdefault(viewer.name, {})
        if len(own) >= MOST_PREVIEWS:
            oldest = next((key for key, one in own.items() if not one.runs), None)
            if oldest is None:
                raise HTTPException(429, f"{len(own)} changes of this role are under way: wait for one of them")
            del own[oldest]
        own[kept.number] = kept

    def _find(self, request: Request, viewer: Viewer) -> _Kept:
        """Return a preview of this session and person. Raise 404: another's is not told from none."""
        path, _ = _place(request)
        kept = self._kept.get(viewer.name, {}).get(request.path_params["number"])
        if (
            kept is None
            or kept.is_over
            or kept.preview.verb != OFFERED[path]
            or not secrets.compare_digest(kept.owner, self._owner(request, viewer))
        ):
            raise HTTPException(
                404,
                "this preview is gone: if you have confirmed it, look whether the change was made; else begin again",
            )
        return kept

    def _owner(self, request: Request, viewer: Viewer) -> str:
        return token_of(self._door.secret, self._door.cookie_of(request), viewer.name)

    async def _checked(self, request: Request, viewer: Viewer, address: str) -> dict[str, str]:
        """Return the fields of a form. Raise 403 for one without the token of this address, session and person."""
        form = await self._door.fields(request)
        cookie = self._door.cookie_of(request)
        if not is_token(self._door.secret, cookie, form.get("token", ""), viewer.name, address):
            log.warning("refused a change without its token from %s as %r", self._door.peer(request), viewer.name)
            raise HTTPException(403, NOT_OURS)
        return form

    def _to(self, request: Request, path: str) -> Response:
        return RedirectResponse(page_address(request.scope.get("root_path", ""), path), 303)

    async def _drawn(
        self, request: Request, viewer: Viewer, fixed: Mapping[str, str], stage: str, view: Mapping[str, Any]
    ) -> str:
        path, form = _place(request)
        subject = form.subject(fixed)
        page = Page(
            f"{CHANGES[OFFERED[path]].label}: {subject}",
            "change.html",
            {},
            {"stage": stage, "subject": subject, "label": CHANGES[OFFERED[path]].label, "form": form, **view},
            noun=form.noun,
            is_live=False,
        )
        return await run_in_threadpool(self._door.drawn, request, page, path, viewer)


def offers(page: Page) -> list[tuple[str, str, Mapping[str, str]]]:
    """Return the buttons of a page: label, path and inputs of each."""
    return [(CHANGES[verb].label, f"change/{verb.replace(' ', '-')}", fixed) for verb, fixed in page.changes]


def _place(request: Request) -> tuple[str, Form]:
    """Return the path of a change, and its form."""
    root = request.scope.get("root_path", "")
    path = "/".join(request.url.path.removeprefix(root).split("/")[1:3])
    return path, FORMS[OFFERED[path]]
