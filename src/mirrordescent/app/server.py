"""The server of the app: a page for this computer only."""

from __future__ import annotations

import hmac
import json
import secrets
import tempfile
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias
from urllib.parse import parse_qs, quote, urlsplit

from mirrordescent import __version__
from mirrordescent.app.work import Busy, Studio

ADDRESS = "127.0.0.1"
LARGEST_UPLOAD = 256 << 20  # bytes of a photograph
LARGEST_MASK = 64 << 20
LARGEST_OPTIONS = 1 << 16
STATIC = {
    "/app.js": ("page/app.js", "text/javascript; charset=utf-8"),
    "/app.css": ("page/app.css", "text/css; charset=utf-8"),
    "/icon.svg": ("page/icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Refused(Exception):
    """A request that is not answered, with its status and the reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class AppServer:
    """The server of the app, as a context manager.

    It listens on the loopback address only. Every request must name this address in its header
    ``Host``, must not come from another page (``Origin``), and must have a secret token, which is
    part of the address of the page.

    Args:
        port: Port; 0 for any free port.
        fused: Whether to use kernels in C; see :func:`~mirrordescent.solve`.

    >>> with AppServer() as server:
    ...     server.address.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, port: int = 0, fused: bool | None = None) -> None:
        self.token = secrets.token_urlsafe(24)
        self._folder = tempfile.TemporaryDirectory(prefix="mirrordescent-app-")
        self.studio = Studio(Path(self._folder.name), fused)
        try:
            self._http = _HTTPServer((ADDRESS, port), _Handler)
        except OSError as error:
            self._folder.cleanup()
            raise OSError(
                f"port {port} cannot be used: {error.strerror or error}. Choose another one with "
                "--port"
            ) from error
        self._http.app = self

    @property
    def port(self) -> int:
        """The port."""
        return int(self._http.server_address[1])

    @property
    def address(self) -> str:
        """Address of the page, with the token."""
        return f"http://{ADDRESS}:{self.port}/?token={self.token}"

    def serve(self) -> None:
        """Answer requests until :meth:`stop` is called from another thread."""
        self._http.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End :meth:`serve`."""
        self._http.shutdown()

    def __enter__(self) -> AppServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.studio.close()
        self._http.server_close()
        self._folder.cleanup()


class _HTTPServer(ThreadingHTTPServer):
    """A server that knows its app."""

    daemon_threads = True
    app: AppServer


Answer: TypeAlias = tuple[bytes, str, dict[str, str]]


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _HTTPServer
    server_version = f"mirrordescent/{__version__}"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 120

    def do_GET(self) -> None:
        """Answer with the page, its parts, pictures, the state of the work, or a file."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Take a photograph, begin to restore one, or cancel."""
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: addresses have the token."""

    def _answer(self, handle: Callable[[str], Answer]) -> None:
        status = HTTPStatus.OK
        extra: dict[str, str] = {}
        try:
            self._require_local()
            body, kind, extra = handle(urlsplit(self.path).path)
        except Refused as refusal:
            status = refusal.status
            body, kind, _ = _data({"error": str(refusal)})
            self.close_connection = True
        except (KeyError, FileNotFoundError):
            status = HTTPStatus.NOT_FOUND
            body, kind, _ = _data({"error": "there is no such photograph"})
        except Busy as error:
            status = HTTPStatus.CONFLICT
            body, kind, _ = _data({"error": str(error)})
        except (ValueError, TypeError, OSError) as error:
            status = HTTPStatus.BAD_REQUEST
            body, kind, _ = _data({"error": str(error)})
        self.send_response(status)
        for name, value in {**HEADERS, **extra}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _require_local(self) -> None:
        """Refuse requests for other hosts (DNS rebinding) and from other pages."""
        hosts = {f"{ADDRESS}:{self.server.app.port}", f"localhost:{self.server.app.port}"}
        if self.headers.get("Host") not in hosts:
            raise Refused(HTTPStatus.FORBIDDEN, "this address is not served")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in hosts}:
            raise Refused(HTTPStatus.FORBIDDEN, "requests from other pages are refused")

    def _require_token(self) -> None:
        given = self.headers.get("X-Token")
        if given is None:
            given = parse_qs(urlsplit(self.path).query).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self.server.app.token.encode()):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "open the address that mirrordescent app has printed; it has a secret token",
            )

    def _get(self, path: str) -> Answer:
        if path in STATIC:
            name, kind = STATIC[path]
            return _resource(name), kind, {}
        self._require_token()
        if path == "/":
            return _resource("page/index.html"), "text/html; charset=utf-8", {}
        match path.split("/"):
            case ["", "photo", identifier, "before.png"]:
                return self._studio.photos[identifier].before(), "image/png", {}
            case ["", "photo", identifier, "after.png"]:
                return self._studio.photos[identifier].after(), "image/png", {}
            case ["", "photo", identifier, "work"]:
                work = self._studio.photos[identifier].work
                return _data({"state": "idle"} if work is None else work.report())
            case ["", "photo", identifier, "file"]:
                return self._file(identifier)
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    def _post(self, path: str) -> Answer:
        self._require_token()
        match path.split("/"):
            case ["", "photo"]:
                name = parse_qs(urlsplit(self.path).query).get("name", ["photo"])[0]
                return self._opened(self._studio.open(name, self._body(LARGEST_UPLOAD)))
            case ["", "photo", identifier, "restore"]:
                return self._restore(identifier)
            case ["", "cancel"]:
                self._body(LARGEST_OPTIONS)
                self._studio.cancel()
                return _data({})
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    @property
    def _studio(self) -> Studio:
        return self.server.app.studio

    def _opened(self, identifier: str) -> Answer:
        opened = self._studio.photos[identifier]
        width, height = opened.photo.size
        preview_width, preview_height = opened.preview_size
        return _data(
            {
                "id": identifier,
                "name": opened.path.name,
                "width": width,
                "height": height,
                "preview": [preview_width, preview_height],
            }
        )

    def _restore(self, identifier: str) -> Answer:
        """Begin to restore; the body is a line of JSON, followed by the mask as PNG."""
        body = self._body(LARGEST_MASK)
        line, _, mask = body.partition(b"\n")
        options = json.loads(line[:LARGEST_OPTIONS])
        if not isinstance(options, dict):
            raise ValueError("settings must be a JSON object")
        return _data(self._studio.start(identifier, options, mask or None).report())

    def _file(self, identifier: str) -> Answer:
        work = self._studio.photos[identifier].work
        if work is None or work.output is None:
            raise FileNotFoundError
        name = quote(f"{work.output.stem}-restored{work.output.suffix}")
        extra = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return work.output.read_bytes(), "application/octet-stream", extra

    def _body(self, largest: int) -> bytes:
        """Read the body of a request, if it is not too large."""
        length = self.headers.get("Content-Length")
        if length is None or not length.isdecimal():
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a request needs its length")
        if int(length) > largest:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a file may have at most {largest >> 20} megabytes",
            )
        return self.rfile.read(int(length))


def _resource(name: str) -> bytes:
    return files("mirrordescent.app").joinpath(name).read_bytes()


def _data(value: Any) -> Answer:
    return json.dumps(value).encode(), "application/json", {}
