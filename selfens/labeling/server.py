"""The server of the page: Starlette on the loopback address. It shows rows by their number, and never by a path.

Every request but the empty page needs the token of the printed address, which is behind the #; the page sends it as a header.
So other sites that the browser shows can neither read nor write. Host and Origin are checked besides.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import io
import json
import multiprocessing
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selfens.data.images import ImageFiles, thumbnail
from selfens.errors import ConfigError, DataError, SelfensError, plural
from selfens.labeling import worker
from selfens.labeling.project import Project
from selfens.labeling.store import Store
from selfens.report.render import shown

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
PORT = 8137
LARGEST = 1600  # pixels a side of an image that is shown
LONGEST = 20_000  # characters of a text, or of all cells
LARGEST_BODY, LONGEST_LABEL = 10_000, 100
EVERY = 20  # labels between two trainings
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Desk:
    """A store and the process that trains; `message` and `state` are what it last said."""

    def __init__(self, project: Project, every: int = EVERY) -> None:
        self.project, self.store, self.every = project, Store(project), every
        self.state, self.message = {"doing": "encoding", "done": 0, "rows": len(self.store.rows)}, ""
        self.is_ready, self.trained_with, self.wanted = False, -1, False
        self.notes: list[str] = []
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=worker.work, args=(other, project), daemon=True)
        self.process.start()
        other.close()

    def listen(self, call: Callable[..., Any]) -> None:
        """Hand the messages of the worker to `call`, until it is gone."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                call(self.take, *self.connection.recv())
        with contextlib.suppress(RuntimeError):  # the server has ended, too
            call(
                self.take,
                "failed",
                "the process that trains has ended; labels are kept; start the page again to train.",
            )

    def take(self, word: str, what: Any) -> None:
        """Act on a message of the worker."""
        store = self.store
        if word == "encoded":
            self.state = {"doing": "encoding", "done": what, "rows": len(store.rows)}
        elif word == "queue":
            store.put(what)
        elif word == "ready":
            self.is_ready, self.state = True, {"doing": ""}
            self.train_if(store.num_labeled > 0)
        elif word == "predicted":
            store.predicted = what
        elif word == "doubtful":
            store.doubtful |= {row: why for row, why in what if store.labels[row] is not None}
        elif word == "measured":
            point, self.notes = what
            store.measured(point)
        elif word in ("training", "measuring"):
            self.state = {"doing": word, "labels": what, "since": time.time()}
        else:  # idle, waiting, failed
            self.trained_with = 0 if word == "waiting" else self.trained_with
            self.state, self.message = {"doing": ""}, what or ""
            self.train_if(self.wanted)

    def train_if(self, wanted: bool) -> None:
        """Train now, or when what goes on is done; measuring is stopped for it."""
        if not wanted or not self.process.is_alive():
            return
        self.wanted = not self.is_ready or self.state["doing"] == "training"
        if not self.wanted:
            self.trained_with, self.message = self.store.num_labeled, ""
            self.state = {"doing": "training", "labels": self.trained_with, "since": time.time()}
            with contextlib.suppress(OSError):
                self.connection.send("train")

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join(5)

    # What the page shows

    def view(self, row: int, why: str, window: str) -> dict[str, Any]:
        store, labels = self.store, self.store.labels
        known, suggestion = labels[row], None
        if store.predicted is not None:
            suggestion = {"label": store.predicted[0][row], "probability": store.predicted[1][row]}
        return {
            **self.status(),
            "row": row,
            "name": shown(store.names[row], 80),
            "why": why,
            "label": known,
            "suggested": suggestion,
            **content(self.project, int(store.rows[row])),
            "next": store.upcoming(2, window),
        }

    def status(self) -> dict[str, Any]:
        store = self.store
        store.refresh()
        return {
            "data": shown(str(self.project.source.path), 80),
            "journal": shown(str(store.path), 200),
            "classes": [{"name": name, "count": count} for name, count in store.counts.items()],
            "labeled": store.num_labeled,
            "rows": len(store.rows),
            "drawn": len(store.drawn),
            "skipped": store.num_skipped,
            "junk": len(store.marks) - store.num_skipped,
            "seconds": store.seconds,
            "every": self.every,
            "state": self.state,
            "message": self.message,
            "notes": self.notes,
            "to_measure": sum(labels is None for labels in (store.labels[row] for row in store.to_measure)),
            "curve": store.noted.measured,
        }


def content(project: Project, row: int) -> dict[str, Any]:
    """Return what a person sees of a row: an image, a text, or cells."""
    raw = project.data.raw
    if len(raw.shape) == 4:
        return {"kind": "image"}
    if hasattr(raw, "iloc"):
        cells = [[shown(str(name), 60), str(cell)[:LONGEST]] for name, cell in raw.iloc[row].items() if cell == cell]
        if len(raw.columns) == 1:
            return {"kind": "text", "text": cells[0][1] if cells else ""}
        return {"kind": "cells", "cells": cells[:200]}
    numbers = np.asarray(raw[row]).ravel()
    return {"kind": "cells", "cells": [[str(place), f"{number:g}"] for place, number in enumerate(numbers[:60])]}


def picture(project: Project, row: int) -> tuple[bytes, str]:
    """Return a whole image as a file for browsers; OSError or ValueError if it cannot be read."""
    from PIL import Image

    data = project.data
    if isinstance(data.raw, ImageFiles):
        return thumbnail(Path(data.ids[row]), LARGEST), "image/jpeg"
    pixels = np.asarray(data.raw[row])
    whole = pixels if pixels.dtype == np.uint8 else (np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(whole[0] if len(whole) == 1 else np.ascontiguousarray(whole.transpose(1, 2, 0))).save(file, "PNG")
    return file.getvalue(), "image/png"


# Requests


def application(desk: Desk, token: str, hosts: set[str]) -> Starlette:
    """Return the application; it answers requests with one of these Hosts, or with any if there are none."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    store = desk.store

    def refused(sentence: str, status: int) -> Response:
        return JSONResponse({"error": sentence}, status, headers=HEADERS)

    def guarded(answer: Callable[[Request], Awaitable[Response]], *, is_open: bool = False) -> Any:
        async def checked(request: Request) -> Response:
            host, origin = request.headers.get("host", ""), request.headers.get("origin")
            if (hosts and host not in hosts) or (origin is not None and origin.partition("://")[2] != host):
                return refused("this address is not the one that selfens label printed.", 403)
            given = request.headers.get("x-token", "")
            if not is_open and not hmac.compare_digest(given.encode(), token.encode()):
                return refused("the address lacks the token; open the address that selfens label printed.", 403)
            try:
                return await answer(request)
            except SelfensError as error:
                return refused(str(error), 409)
            except OSError as error:
                return refused(
                    f"the label could not be written ({error.strerror or error}); nothing else is lost.", 507
                )

        return checked

    def static(name: str, kind: str) -> Any:
        async def answer(request: Request) -> Response:
            return Response((PAGE / name).read_bytes(), media_type=kind, headers=HEADERS)

        return guarded(answer, is_open=True)

    async def status(request: Request) -> Response:
        return JSONResponse(desk.status(), headers=HEADERS)

    async def image(request: Request) -> Response:
        row = request.path_params["row"]
        if row >= len(store.rows) or len(desk.project.data.raw.shape) != 4:
            return refused(f"there is no image {row}.", 404)
        try:
            made, kind = await asyncio.to_thread(picture, desk.project, int(store.rows[row]))
        except Exception as error:  # Pillow's decoders raise anything for damaged files
            name = shown(store.names[row], 80)
            return refused(f"{name} cannot be read ({type(error).__name__}); skip it, or mark it as junk.", 404)
        return Response(made, media_type=kind, headers=HEADERS)

    async def show(request: Request) -> Response:
        window, row = request.query_params.get("window", "")[:40], request.query_params.get("row", "")
        if row.isdigit() and int(row) < len(store.rows):  # one that was labeled before
            store.show_again(int(row), window)
            return JSONResponse(desk.view(int(row), "shown again", window), headers=HEADERS)
        return following(window)

    def following(window: str, message: str = "") -> Response:
        found = store.next(window)
        view = desk.status() | {"row": None} if found is None else desk.view(*found, window)
        return JSONResponse(view | {"message": message or view["message"]}, headers=HEADERS)

    async def answer(request: Request) -> Response:
        given = await body(request)
        match given:
            case {"row": int(row), "window": str(window)} if type(row) is int and 0 <= row < len(store.rows):
                desk.message = ""
            case _:
                raise DataError("the answer names no row; reload the page.")
        if (gone := store.gone(row)) and given.get("label", "") is not None:
            return following(window[:40], gone)
        seconds, why = given.get("seconds"), given.get("why")
        match given:
            case {"label": str(label)} if label.strip():
                name = " ".join(label.split())
                if len(name) > LONGEST_LABEL or not name.isprintable():
                    raise DataError(f"the name of a class has at most {LONGEST_LABEL} characters that can be shown.")
                took = float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 86_400 else None
                store.label(row, name, why=str(why), seconds=took)
            case {"label": None}:
                store.label(row, None)
            case {"mark": "junk" | "skipped" as mark}:
                store.mark(row, mark)
            case _:
                raise DataError("the answer is neither a label nor skip nor junk; reload the page.")
        since = store.num_labeled - max(desk.trained_with, 0)
        desk.train_if(since >= desk.every and len(store.counts) > 1)
        return following(window[:40])

    async def order(request: Request) -> Response:
        given = await body(request)
        desk.message = ""
        if given.get("do") == "measure":
            desk.message = f"{plural(store.draw(), 'random row')} come next, to measure the error."
        elif given.get("do") == "train" and desk.is_ready and len([n for n in store.counts.values() if n]) < 2:
            desk.message = "The first model is trained when two classes have a label."
        elif given.get("do") == "train":
            desk.train_if(True)
        return JSONResponse(desk.status(), headers=HEADERS)

    async def body(request: Request) -> dict[str, Any]:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise DataError("the request holds no JSON.")
        raw = b""
        async for piece in request.stream():
            raw += piece
            if len(raw) > LARGEST_BODY:
                raise DataError("the request is too long.")
        try:
            given = json.loads(raw)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise DataError("the request holds no JSON object.")
        return given

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        call = asyncio.get_running_loop().call_soon_threadsafe
        threading.Thread(target=desk.listen, args=(call,), daemon=True).start()
        yield
        desk.close()

    routes = [Route(address, static(name, kind)) for address, (name, kind) in FILES.items()]
    routes += [
        Route("/status", guarded(status)),
        Route("/row", guarded(show)),
        Route("/image/{row:int}", guarded(image)),
    ]
    routes += [Route("/answer", guarded(answer), methods=["POST"]), Route("/do", guarded(order), methods=["POST"])]
    return Starlette(routes=routes, lifespan=life)


def listening(host: str, port: int | None) -> socket.socket:
    """Return a socket on this port; without one, on the usual port, or any free one if that is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (PORT, 0) if port is None else (port,):
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((host, wanted))
            opened.listen(100)  # before the address is printed, so that a page that opens at once waits
            return opened
        except (OSError, OverflowError) as error:
            opened.close()
            reason = getattr(error, "strerror", None) or str(error)
    raise ConfigError(f"the page cannot be served on {host}, port {port or PORT} ({reason}); choose another --port.")


def user_token() -> str:
    """Return the user's token. It is kept, so that a page that is open goes on when the server is started again."""
    import platformdirs

    path, made = platformdirs.user_state_path("selfens") / "label-token", secrets.token_urlsafe(24)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (
            contextlib.suppress(FileExistsError),
            open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
        ):
            file.write(made)
        about, kept = path.lstat(), path.read_text().strip()
        if about.st_uid == os.getuid() and not about.st_mode & 0o077 and len(kept) >= len(made):
            return kept
    return made


def serve(project: Project, *, host: str, port: int | None, every: int, tell: Callable[[str], None]) -> None:
    """Serve the page until an interrupt; `tell` gets its address."""
    import uvicorn

    opened, token = listening(host, port), user_token()
    number = opened.getsockname()[1]
    names = (
        {host, "127.0.0.1", "localhost", "[::1]"}
        if is_loopback(host)
        else {host, socket.gethostname(), socket.getfqdn()}
    )
    hosts = set[str]() if host in ("0.0.0.0", "::") else {f"{name}:{number}" for name in names}  # any, if it is none
    desk = Desk(project, every)
    shown_host = f"[{host}]" if ":" in host else socket.gethostname() if host == "0.0.0.0" else host
    tell(f"http://{shown_host}:{number}/#{token}")
    quiet = {"log_level": "error", "access_log": False, "server_header": False}
    config = uvicorn.Config(application(desk, token, hosts), ws="none", **quiet)  # type: ignore[arg-type]
    try:
        uvicorn.Server(config).run(sockets=[opened])
    finally:
        desk.close()


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
