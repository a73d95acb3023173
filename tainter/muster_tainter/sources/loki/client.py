"""Queries Loki. Positions are in Loki's time, see :mod:`muster_tainter.sources.http_client`."""

import re
from dataclasses import dataclass
from urllib.parse import urlencode

import httpx2

from muster_tainter.sources.http_client import AnswerTooLarge, SourceClient, SourceError
from muster_tainter.sources.loki.response import BadLokiAnswer, LogEntry, decode_response

PATH = "/loki/api/v1/query_range"

# "max entries limit per query exceeded, limit > max_entries_limit_per_query (5000 > 1000)"
_MOST_ENTRIES = re.compile(r"max entries limit[^()]{0,200}\((\d{1,9}) > (\d{1,9})\)")
# "rpc error: code = ResourceExhausted desc = trying to send message larger than max (… vs. …)"
_TOO_LARGE = re.compile(r"message larger than max")


@dataclass(frozen=True)
class LokiPage:
    """entries: oldest first; malformed: number of invalid values; asked_ns: Loki's time of the request."""

    entries: list[LogEntry]
    malformed: int
    asked_ns: int

    @property
    def lines(self) -> int:
        return len(self.entries) + self.malformed


class LokiClient(SourceClient):
    async def ask(self, query: str, start_ns: int, end_ns: int, limit: int) -> LokiPage:
        """Lines with start <= time < end, at most ``limit``, in Loki's order. Raises SourceError."""
        parameters = {"query": query, "start": start_ns, "end": end_ns, "limit": limit, "direction": "forward"}
        body, asked_ns = await self.get(f"{PATH}?{urlencode(parameters)}")
        try:
            entries, malformed = decode_response(body)
        except BadLokiAnswer as error:
            raise SourceError(f"{self.where.url}: {error}") from error
        return LokiPage(entries, malformed, asked_ns)

    def failure(self, response: httpx2.Response, body: bytes) -> SourceError:
        failure = super().failure(response, body)
        text = body.decode("utf-8", "replace")
        most = _MOST_ENTRIES.search(text)
        if response.status_code == 400 and most:
            return AnswerTooLarge(str(failure), int(most[2]))
        return AnswerTooLarge(str(failure)) if _TOO_LARGE.search(text) else failure
