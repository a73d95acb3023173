"""``make audit``: a vulnerability is found, and a service that does not answer is never taken for a pass."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from release import audit
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner

PACKAGES = {"h11": "0.16.0", "idna": "3.20"}
# as api.osv.dev answers; the schema: ossf.github.io/osv-schema
VULNERABLE = {
    "vulns": [
        {
            "id": "PYSEC-2099-1",
            "summary": "reads past the end",
            "schema_version": "1.6.0",
            "affected": [
                {
                    "package": {"name": "h11", "ecosystem": "PyPI"},
                    "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "0.17.0"}]}],
                }
            ],
        }
    ]
}
Service = Callable[[int, Callable[[str], bytes]], str]


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    file = tmp_path / "locked.txt"
    file.write_text("".join(f"{name}=={version} --hash=sha256:{'a' * 64}\n" for name, version in PACKAGES.items()))
    return file


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Serves a status and a body, by the package that it is asked for. Returns the address."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    servers = []

    def serve(status: int, answer: Callable[[str], bytes]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = answer(asked["package"]["name"])
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append((server, threading.Thread(target=server.serve_forever)))
        servers[-1][1].start()
        return f"http://127.0.0.1:{server.server_address[1]}/v1/query"

    yield serve
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def run(locked: Path, url: str) -> int:
    return audit.main(["--requirement", str(locked), "--osv-url", url])


def test_a_known_vulnerability_is_named_with_its_fix(
    locked: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    url = service(200, lambda name: json.dumps(VULNERABLE if name == "h11" else {}).encode())
    assert run(locked, url) == audit.EXIT_VULNERABLE
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("h11 ")]
    assert all(fact in line for fact in ("0.16.0", "PYSEC-2099-1", "0.17.0"))


def test_the_documents_command_asks_for_every_package(service: Service) -> None:
    asked: list[str] = []

    def answer(name: str) -> bytes:
        asked.append(name)
        return b"{}"

    line = CommandRunner(commands_of_test(__file__), {}, {})
    assert "0 known vulnerabilities" in line.type("make audit", f"ARGS=--osv-url {service(200, answer)}")
    assert {"pydantic", "kubernetes"} <= set(asked)


def test_none_is_known(locked: Path, service: Service) -> None:
    assert run(locked, service(200, lambda _: b"{}")) == 0


@pytest.mark.parametrize(("status", "body"), [(500, b"{}"), (403, b"no"), (200, b"<html>sign in</html>"), (200, b"")])
def test_a_service_that_answers_nonsense_is_no_pass(locked: Path, service: Service, status: int, body: bytes) -> None:
    assert run(locked, service(status, lambda _: body)) == audit.EXIT_UNKNOWN


def test_a_service_that_cannot_be_reached_is_no_pass(
    locked: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(locked, "http://127.0.0.1:1/v1/query") == audit.EXIT_UNKNOWN
    assert "http://127.0.0.1:1/v1/query" in capsys.readouterr().err


def test_a_package_without_an_answer_is_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """As PyPI's own service has it for a package of a mirror: pip-audit alone ends with 0."""
    answer = audit.Answer((audit.Package("h11", "0.16.0", ()), audit.Package("idna", skip_reason="not found on PyPI")))
    assert audit.report(answer, "u") == audit.EXIT_UNKNOWN
    assert "idna" in capsys.readouterr().err
    assert audit.report(audit.Answer(()), "u") == audit.EXIT_UNKNOWN


def test_wrong_arguments_are_a_usage_error() -> None:
    assert audit.main(["--osv"]) == 64
    assert audit.main(["--nonsense"]) == 64


def test_what_is_asked_for_has_all_packages_of_the_image() -> None:
    image, asked = (
        {line.split("==")[0] for line in file.read_text().splitlines() if "==" in line}
        for file in (audit.ROOT / "requirements/image.txt", audit.LOCKED)
    )
    assert image < asked
