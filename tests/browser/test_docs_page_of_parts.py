"""`/docs` of the tainter, the V-IPU proxy and the simulator in Chromium: every request is drawn, and can be sent."""

import base64
import os
import socket
from pathlib import Path

import pytest
import uvicorn
from tests.browser.chromium import Browser
from tests.browser.served import served
from tests.operator.proxy.test_schemathesis import make_service
from tests.tainter.http.service import bare_service

from muster_kube.http.service import Service
from muster_operator.vipu.simulator.clocked_fleet import ClockedFleet
from muster_operator.vipu.simulator.fleet import SimulatedFleet
from muster_operator.vipu.simulator.routes import make_app as make_simulator


@pytest.mark.parametrize(
    ("part", "service"),
    [
        ("tainter", bare_service()),
        ("vipu-proxy", make_service()),
        ("vipu-sim", make_simulator(ClockedFleet(SimulatedFleet(ipus=16), lambda: 0.0))),
    ],
    ids=["tainter", "vipu-proxy", "vipu-sim"],
)
def test_swagger_draws_every_request_and_asks_the_part_alone(part: str, service: Service, browser: Browser) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(service, log_config=None, access_log=False, lifespan="off", ws="none"))
    with served(server, listener) as url:
        browser.window(1280, 1400, dark=False)
        browser.open(f"{url}/docs")
        browser.until(lambda: browser.find(".opblock"), "Swagger is drawn")
        drawn = {each.text.replace("\u200b", "") for each in browser.find(".opblock-summary-path")}
        assert drawn == set(service.openapi()["paths"])
        asked = browser.requests()
        assert {f"{url}/docs/swagger-ui-bundle.js", f"{url}/openapi.json"} <= set(asked)
        assert [each for each in asked if not each.startswith((url, "data:", "about:"))] == []
        assert browser.complaints() == []
        if folder := os.environ.get("MUSTER_PICTURES"):
            picture = base64.b64decode(browser.cdp("Page.captureScreenshot", {"format": "png"})["data"])
            Path(folder, f"{part}-docs.png").write_bytes(picture)
        browser.open("about:blank")  # its connections end
