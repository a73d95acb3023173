"""A server on loopback that answers as an agent has answered, in pieces and with gaps where a test wants them."""

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

GUARD_S = 60.0

Piece = bytes | threading.Event


def node(name: str, verdict: str = "PASS", **results: Any) -> bytes:
    """One line of format=jsonl. results: by check."""
    found = [{"check": check, **result} for check, result in results.items()]
    document = {"node": name, "verdict": verdict, "endpoint": "10.0.0.1:3333", "results": found}
    return json.dumps(document).encode() + b"\n"


def bad(component: str = "gpu/0000:3b:00.0", verdict: str = "FAIL", message: str = "slow") -> dict[str, Any]:
    finding = {"component": component, "verdict": verdict, "reason": "LowBandwidth", "message": message}
    return {"verdict": verdict, "reason": "LowBandwidth", "message": message, "findings": [finding]}


def ending(verdict: str = "PASS", **others: Any) -> bytes:
    return json.dumps({"summary": {}, "runtimeSeconds": 1.5, "verdict": verdict, **others}).encode() + b"\n"


class RecordedAgent:
    """answers: status and pieces of each call in turn, the last for all that follow; an Event holds up what follows.

    asked: paths and queries so far
    """

    def __init__(self, *answers: tuple[int, Sequence[Piece]]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.headers: list[dict[str, str]] = []
        self.patched: list[tuple[str, dict[str, Any]]] = []  # NodeHealths, as the API server
        self.patch_status = 200
        self.called = threading.Event()
        self.url = ""


@contextlib.contextmanager
def serving(agent: RecordedAgent, host: str = "127.0.0.1") -> Iterator[RecordedAgent]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path.endswith("/nodehealths"):
                self._whole(json.dumps({"items": [{}], "metadata": {"remainingItemCount": 7}}).encode())
                return
            agent.asked.append((parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()}))
            agent.headers.append(dict(self.headers.items()))
            status, pieces = agent.answers.pop(0) if len(agent.answers) > 1 else agent.answers[0]
            self.send_response(status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            agent.called.set()
            with contextlib.suppress(OSError):  # whoever asked may have gone
                for piece in pieces:
                    if isinstance(piece, threading.Event):
                        if not piece.wait(GUARD_S):
                            self.close_connection = True
                            return
                    else:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            agent.patched.append((self.path, body))
            self._whole(json.dumps({"metadata": {"name": "a"}}).encode(), agent.patch_status)

        def _whole(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    agent.url = f"http://{host}:{server.server_port}"
    try:
        yield agent
    finally:
        server.shutdown()
        server.server_close()
        thread.join(GUARD_S)
