"""A small HTTP server that serves bytes well or badly, for tests of downloads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What the server serves, how it misbehaves, and what it was asked."""

    content: bytes
    status: int = 200
    ranges: bool = True  # whether it can send a rest
    breaks: list[int] = field(default_factory=list)  # of the n-th answer, only so many bytes arrive
    stalls: bool = False  # answers with a header, and then with nothing
    asked: list[str | None] = field(default_factory=list)  # the Range header of every request
    url: str = ""
    released: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, site)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}/table.csv"
    try:
        yield site
    finally:
        site.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def answer(handler: BaseHTTPRequestHandler, site: Site) -> None:
    asked = handler.headers.get("Range")
    site.asked.append(asked)
    if site.status != 200:
        handler.send_error(site.status)
        return
    start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and site.ranges else 0
    if start >= len(site.content):
        handler.send_error(416)
        return
    body = site.content[start:]
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(site.content) - 1}/{len(site.content)}")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if site.stalls:
        site.released.wait(10)
        return
    handler.wfile.write(body[: site.breaks.pop(0)] if site.breaks else body)
