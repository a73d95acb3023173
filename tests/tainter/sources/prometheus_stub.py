"""Prometheus' instant queries over HTTP, with the series that a test names; served like the stub of Loki."""

import json
from urllib.parse import parse_qs, urlsplit

from tests.tainter.sources.loki_stub import Answer, LokiServer
from tests.tainter.sources.test_loki_feed import until


class PrometheusServer(LokiServer):
    """series: by query, label sets with values. failure: answered instead. asked: number of queries so far."""

    def __init__(self) -> None:
        super().__init__()
        self.series: dict[str, list[tuple[dict[str, str], str]]] = {}
        self.failure: Answer | None = None
        self.asked = 0

    def answer(self, target: str, headers: dict[str, str]) -> Answer:
        self.asked += 1
        if self.failure is not None:
            return self.failure
        [query] = parse_qs(urlsplit(target).query)["query"]
        result = [
            {"metric": labels, "value": [1_700_000_000.123, value]} for labels, value in self.series.get(query, [])
        ]
        return 200, {}, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

    def hot(self, *nodes: str, value: str = "95", query: str = "temp > 90") -> None:
        self.series[query] = [({"node": node, "gpu": "0"}, value) for node in nodes]

    async def asked_again(self) -> None:
        asked = self.asked
        await until(lambda: self.asked > asked + 4, "asked again")
