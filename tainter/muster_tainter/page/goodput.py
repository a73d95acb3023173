"""The goodput page over HTTP: where the accelerator-hours went, from the record in the ConfigMap.

Every replica serves it, whether or not it leads. The books are read at most once in FRESH_S, however many ask.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Query, Request
from fastapi.responses import Response

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, NotFound
from muster_kube.http.bad_request import BadRequest, check_query
from muster_kube.http.responses import StructResponse, described, struct
from muster_kube.http.service import Service
from muster_kube.process.settings import quote
from muster_tainter.goodput.report import HOUR_S, By, Report, make_report
from muster_tainter.goodput.state import NAME, BadState, State
from muster_tainter.goodput.store import GoodputMap
from muster_tainter.http.responses import JSON_STATUS
from muster_tainter.http.volume_trials import HttpRefusal
from muster_tainter.page.static_files import NEVER_STORED, answer_file, text_content
from muster_tainter.pause import config_maps
from muster_tainter.policy.heavy_checks import parse_duration

FRESH_S = 15.0  # the books are written once a minute


class GoodputReader:
    """now: seconds since the epoch; clock: monotonic."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._path = f"{config_maps(namespace)}/{NAME}"
        self.now = now
        self._clock = clock
        self._lock = asyncio.Lock()
        self._read: State | HttpRefusal | None = None
        self._read_at = 0.0

    async def state(self) -> State:
        """Raises HttpRefusal."""
        async with self._lock:
            if self._read is None or self._clock() - self._read_at > FRESH_S:
                self._read, self._read_at = await self._ask(), self._clock()
        if isinstance(self._read, HttpRefusal):
            raise self._read
        return self._read

    async def _ask(self) -> State | HttpRefusal:
        try:
            found = await self._client.get(self._path, type=GoodputMap)
            return await asyncio.to_thread(found.state, self.now())
        except NotFound:
            text = "the tainter keeps no record: its policy has no section goodput, or the first minute has not passed"
            return HttpRefusal(404, "NotFound", text)
        except BadState as error:
            return HttpRefusal(404, "NotFound", f"ConfigMap {NAME}: cannot read the record: {error}")
        except (ApiError, ConfigError) as error:
            return HttpRefusal(503, "ServiceUnavailable", f"ConfigMap {NAME}: {error}")


def add_goodput_page(service: Service, books: GoodputReader) -> None:
    """Add the page's routes to the tainter's service."""
    service.structs.append(Report)

    @service.get("/goodput", response_class=Response, responses={200: described("the page", text_content("text/html"))})
    async def goodput_page(request: Request) -> Response:
        """The goodput page."""
        return answer_file(request, "goodput.html")

    @service.get(
        "/api/goodput",
        dependencies=[Depends(check_query)],
        responses={
            200: described("the record, summed", {"application/json": struct(Report)}),
            404: described("the tainter keeps no record, or it cannot be read", JSON_STATUS),
            503: described("the API server does not answer", JSON_STATUS),
        },
    )
    async def goodput(
        since: Annotated[str, Query(description="how far back, 1h to 366d, such as 24h or 7d")] = "7d",
        by: Annotated[By, Query(description="what the rows are")] = By.CAUSE,
    ) -> Response:
        """Where the accelerator-hours went, how often nodes and jobs failed, and the worst nodes, as `muster goodput`
        shows them."""
        try:
            since_s = parse_duration(since, least_s=HOUR_S)
        except ValueError:
            raise BadRequest(f"since: {quote(since[:40])}: expected a time of 1h to 366d, such as 24h or 7d") from None
        report = make_report(await books.state(), books.now() - since_s, by)
        return StructResponse(report, headers=NEVER_STORED)
