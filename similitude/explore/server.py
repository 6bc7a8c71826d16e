"""The page on this machine: a server for the loopback address, which one reader with the token may ask.

What a request names is looked up in tables made at the start; no part of it ever becomes a path of a file.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn import Config, Server

from .edits import Refused
from .page import files, read
from .session import Session

# Bytes of a question at most, seconds that a client may take to send one, and clients at once.
LARGEST, SECONDS, CLIENTS = 2**22, 10.0, 200
QUESTIONS = ("name", "set", "measures", "search", "find", "image", "pictures", "preview", "apply", "undo")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
KINDS = {".js": "text/javascript", ".css": "text/css"}


class RemoteRefused(ValueError):
    """An address that other machines can reach was asked for once, and it must be asked for twice."""


class TooLarge(ValueError):
    """A question is longer than the server reads."""


def application(session: Session, token: str, host: str = "127.0.0.1") -> Starlette:
    """The routes of the page and of its data.

    Args:
        session: the model that is looked at.
        token: what a request for data has as X-Token.
        host: the address that the server listens at; requests for other hosts are refused.
    """
    pages = {name: (read(name), KINDS[name[name.rindex(".") :]]) for name in files()}
    questions: dict[str, Callable[[dict[str, Any]], Any]] = {name: getattr(session, name) for name in QUESTIONS}

    def index(request: Request) -> Response:
        return Response(read("index.html"), media_type="text/html", headers=HEADERS)

    def file(request: Request) -> Response:
        found = pages.get(request.path_params["name"])
        return _missing() if found is None else Response(found[0], media_type=found[1], headers=HEADERS)

    def data(request: Request) -> Response:
        if not _knows(request, token):
            return _forbidden()
        kind, name = request.path_params["kind"], request.path_params.get("name", "")
        if kind == "about" and not name:
            return _json(session.about())
        if kind == "array" and name in session.content.arrays:
            return Response(
                session.content.arrays[name].tobytes(), media_type="application/octet-stream", headers=HEADERS
            )
        if kind == "sprite" and name in session.content.sprites:
            return Response(session.content.sprites[name].png, media_type="image/png", headers=HEADERS)
        return _missing()

    async def question(request: Request) -> Response:
        if not _knows(request, token):
            return _forbidden()
        what = request.path_params["what"]
        if what != "save" and what not in questions:
            return _missing()
        try:
            asked = await asyncio.wait_for(_body(request), SECONDS)
            return await run_in_threadpool(_answer, session, what, questions.get(what), asked)
        except Refused as error:
            return PlainTextResponse(str(error), 400, HEADERS)
        except TooLarge as error:
            # The rest is not read, so nothing more can come on this connection.
            return PlainTextResponse(str(error), 413, {**HEADERS, "Connection": "close"})
        except (TimeoutError, ClientDisconnect):
            return PlainTextResponse("the question took too long.", 408, HEADERS)

    routes = [
        Route("/", index),
        Route("/page/{name}", file),
        Route("/api/{kind}", data),
        Route("/api/{kind}/{name}", data),
        Route("/api/{what}", question, methods=["POST"]),
    ]
    hosts = ["127.0.0.1", "localhost", "[::1]", host]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)])


def serve(
    session: Session,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_remote: bool = False,
    on_ready: Callable[[str], object] = lambda address: None,
) -> None:
    """Serves the page until Ctrl-C.

    Args:
        session: the model that is looked at.
        host: the address to listen at.
        port: 0 for a free one.
        allow_remote: whether an address may be one that other machines can reach.
        on_ready: called with the page's address, which holds the token.
    """
    check_host(host, allow_remote)
    token = secrets.token_urlsafe(32)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        shown = f"[{host}]" if ":" in host else host
        on_ready(f"http://{shown}:{listening.getsockname()[1]}/#token={token}")
        server(session, token, host).run(sockets=[listening])


def server(session: Session, token: str, host: str = "127.0.0.1") -> Server:
    """A server that is given its socket when it runs."""
    return Server(
        Config(
            application(session, token, host),
            log_level="error",
            access_log=False,
            server_header=False,
            limit_concurrency=CLIENTS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
            ws="none",
            lifespan="off",
        )
    )


def check_host(host: str, allow_remote: bool) -> None:
    """Raises unless the address is this machine's own, or others were asked for twice."""
    try:
        own = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        own = False
    if not own and not allow_remote:
        raise RemoteRefused(
            f"other machines can reach {host}, and whoever has the token sees the data: add --allow-remote if that is "
            "wanted, or leave --host out."
        )


def _answer(session: Session, what: str, ask: Callable | None, asked: dict[str, Any]) -> Response:
    """One question at a time: edits change the model that all others read."""
    with session.lock:
        if ask is None:
            return Response(session.saved(), media_type="application/octet-stream", headers=HEADERS)
        return _json(ask(asked))


async def _body(request: Request) -> dict[str, Any]:
    """The question, a JSON object, read no further than to the limit."""
    if request.headers.get("content-encoding"):
        raise Refused("a question is sent as it is, without compression.")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST:
            raise TooLarge(f"a question has at most {LARGEST:,} bytes.")
        parts.append(part)
    try:
        found = json.loads(b"".join(parts) or b"{}")
    except (ValueError, RecursionError):
        raise Refused("a question is a JSON object.") from None
    if not isinstance(found, dict):
        raise Refused("a question is a JSON object.")
    return found


def _knows(request: Request, token: str) -> bool:
    return hmac.compare_digest(request.headers.get("x-token", "").encode(), token.encode())


def _json(value: object) -> Response:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(text, media_type="application/json", headers=HEADERS)


def _missing() -> Response:
    return PlainTextResponse("there is no such thing.", 404, HEADERS)


def _forbidden() -> Response:
    return PlainTextResponse("open the page by the address that was printed: it holds the token.", 403, HEADERS)
