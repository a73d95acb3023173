"""The goodput page over HTTP: where the accelerator-hours went, from the record in the ConfigMap.

Every replica serves it, whether or not it leads. The books are read at most once in FRESH_S, however many ask, and each
report is made once from them, in a thread: for a large fleet it takes about 0.1 s, and the leader must go on meanwhile.
"""

import asyncio
import time
from collections import OrderedDict
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
from muster_tainter.policy.sections.heavy_checks import parse_duration

FRESH_S = 15.0  # the books are written once a minute
REPORTS_LIMIT = 32  # the page offers 16 choices


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
        self._reports: OrderedDict[tuple[float, By], Report] = OrderedDict()  # of what was read; by their begin

    async def report(self, since_s: float, by: By) -> Report:
        """Raises HttpRefusal."""
        async with self._lock:  # so that visitors keep one thread busy at most
            if self._read is None or self._clock() - self._read_at > FRESH_S:
                self._read, self._read_at = await self._read_books(), self._clock()
                self._reports.clear()
            if isinstance(self._read, HttpRefusal):
                raise self._read
            begin = (self.now() - since_s) // HOUR_S * HOUR_S  # an hour counts as a whole
            if (begin, by) not in self._reports:
                self._reports[begin, by] = await asyncio.to_thread(make_report, self._read, begin, by)
            self._reports.move_to_end((begin, by))
            if len(self._reports) > REPORTS_LIMIT:
                self._reports.popitem(last=False)
            return self._reports[begin, by]

    async def _read_books(self) -> State | HttpRefusal:
        try:
            found = await self._client.get(self._path, type=GoodputMap)
            return await asyncio.to_thread(found.state, self.now())
        except NotFound:
            text = (
                "The policy has no section goodput, or its first minute has not passed. To have the tainter keep a "
                "record, add this line to policy.yaml: goodput: {}"
            )
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
        return StructResponse(await books.report(since_s, by), headers=NEVER_STORED)
