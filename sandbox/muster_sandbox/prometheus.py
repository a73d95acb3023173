"""A real Prometheus from Debian, for tests of Muster's metrics, dashboards and alerts.

    found = programs(say)                       # on PATH, else unpacked into the user's cache (30 MB to load)
    scraped = [scrape("muster-agent", "127.0.0.1:3333", node="gpu-1")]
    with Prometheus(found, folder, scraped, rules=[alerts_yaml]) as prometheus:
        prometheus.until_scraped()              # each target has answered
        prometheus.until("up == 1")             # waits until it has a result, and returns that
        prometheus.query("muster_agent_idle")   # now: samples with labels, time and value
        prometheus.alerts()

``found.promtool`` and ``found.amtool`` check rules and Alertmanager's configurations. What is started listens on
loopback, and ends with the test process, even after SIGKILL. It scrapes and evaluates rules once a second.
"""

import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import yaml

from muster_sandbox.processes import ManagedProcess, ProcessReaper, wait_for
from muster_sandbox.programs.packages import PackageTree, unpack_tree

LIMIT_S = 120.0  # a guard against hanging
PACKAGES = PackageTree("monitoring", {"prometheus": "2.42.", "prometheus-alertmanager": "0.25."})
_NAMES = ("prometheus", "promtool", "prometheus-alertmanager", "amtool")
_LISTENING = re.compile(r'msg="Listening on" address=(\S+)')

Labels = dict[str, str]
Scrape = dict[str, Any]  # one of Prometheus' own `scrape_configs`


@dataclass(frozen=True)
class PrometheusPrograms:
    prometheus: Path
    promtool: Path
    alertmanager: Path
    amtool: Path


@dataclass(frozen=True)
class PrometheusSample:
    """time_s: since the epoch. The name of the family is the label ``__name__``."""

    labels: Labels
    time_s: float
    value: float


@dataclass(frozen=True)
class PrometheusSeries:
    """points: pairs of a time in seconds since the epoch and a value."""

    labels: Labels
    points: list[tuple[float, float]]


class QueryRefused(ValueError):
    """Prometheus rejects an expression; the message is Prometheus'."""


def find_programs(progress: Callable[[str], None]) -> PrometheusPrograms:
    """The programs on PATH if all exist, else Debian's, unpacked once. Raises NoPackages (programs/packages.py)."""
    found = [shutil.which(name) for name in _NAMES]
    if all(found):
        return PrometheusPrograms(*(Path(str(each)) for each in found))
    folder = unpack_tree(PACKAGES, progress, finish=_finish)
    return PrometheusPrograms(*(folder / name for name in _NAMES))


def _finish(root: Path, result: Path) -> None:
    for name in _NAMES:
        (root / "usr/bin" / name).rename(result / name)


def scrape_config(job: str, *addresses: str, more: Mapping[str, Any] | None = None, **labels: str) -> Scrape:
    """A row of ``scrape_configs``: targets ``HOST:PORT``, with labels. ``more``: keys of such a row as Prometheus has
    them (scheme, tls_config, authorization, scrape_interval, metric_relabel_configs …)."""
    return {"job_name": job, "static_configs": [{"targets": list(addresses), "labels": labels}], **(more or {})}


class Prometheus:
    """A running one; see the module. Its files and its log lie in ``folder``, which is made."""

    def __init__(
        self,
        found: PrometheusPrograms,
        folder: Path,
        scraped: Sequence[Scrape],
        *,
        rules: Sequence[Path] = (),
        alertmanagers: Sequence[str] = (),
        interval_s: int = 1,
    ) -> None:
        self._found = found
        self._folder = folder
        self._rules = tuple(rules)
        self._alertmanagers = tuple(alertmanagers)
        self._interval_s = interval_s
        self.url = ""
        folder.mkdir(parents=True, exist_ok=True)
        self._write(scraped)

    def __enter__(self) -> Self:
        self._reaper = ProcessReaper()
        log = self._folder / "prometheus.log"
        command = [
            str(self._found.prometheus),
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ]
        self._component = ManagedProcess("prometheus", command, log, self._reaper)
        self._http = httpx2.Client(timeout=LIMIT_S, trust_env=False)
        try:
            self._component.start()
            self._wait(lambda: bool(_LISTENING.search(log.read_text())), "Prometheus' address")
            self.url = f"http://{_LISTENING.findall(log.read_text())[0]}"
            self._wait(lambda: self._http.get(f"{self.url}/-/ready").status_code == 200, "Prometheus' readiness")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()
        self._component.stop()
        self._reaper.close()

    @property
    def log(self) -> str:
        return (self._folder / "prometheus.log").read_text()

    def scrape(self, scraped: Sequence[Scrape]) -> None:
        """Replace the configuration; scraped data stays. Raises RuntimeError if Prometheus rejects it."""
        self._write(scraped)
        taken = self.log.count("Completed loading of configuration file")
        refused = self.log.count("Error reloading config")
        self._component.signal(signal.SIGHUP)
        self._wait(
            lambda: (
                self.log.count("Completed loading of configuration file") > taken
                or self.log.count("Error reloading config") > refused
            ),
            "Prometheus has read its configuration anew",
        )
        if self.log.count("Error reloading config") > refused:
            raise RuntimeError(self._component.tail())

    def targets(self) -> list[dict[str, Any]]:
        """As /api/v1/targets lists the active ones: ``labels``, ``health`` (up, down, unknown), ``lastError`` …"""
        found: list[dict[str, Any]] = self._ask("targets", {"state": "active"})["activeTargets"]
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """Those that are pending or firing: ``labels``, ``annotations``, ``state`` …"""
        found: list[dict[str, Any]] = self._ask("alerts", {})["alerts"]
        return found

    def query(self, expression: str, *, at_s: float | None = None) -> list[PrometheusSample]:
        """Now, or at a time. A scalar is one sample without labels. Raises QueryRefused."""
        moment = {} if at_s is None else {"time": repr(at_s)}
        answer = self._ask("query", {"query": expression, **moment})
        if answer["resultType"] == "scalar":
            time_s, value = answer["result"]
            return [PrometheusSample({}, float(time_s), float(value))]
        if answer["resultType"] != "vector":
            raise QueryRefused(f"{expression}: is a {answer['resultType']}, which has no value at one time")
        return [
            PrometheusSample(each["metric"], float(each["value"][0]), float(each["value"][1]))
            for each in answer["result"]
        ]

    def query_range(self, expression: str, *, start_s: float, end_s: float, step_s: float) -> list[PrometheusSeries]:
        """Raises QueryRefused."""
        bounds = {"start": repr(start_s), "end": repr(end_s), "step": repr(step_s)}
        answer = self._ask("query_range", {"query": expression, **bounds})
        return [
            PrometheusSeries(each["metric"], [(float(time_s), float(value)) for time_s, value in each["values"]])
            for each in answer["result"]
        ]

    def until(self, expression: str, *, limit_s: float = LIMIT_S) -> list[PrometheusSample]:
        """The result of ``expression`` as soon as it has one. Raises TimeoutError, with the state of the targets."""
        deadline = time.monotonic() + limit_s
        while not (samples := self.query(expression)):
            self._component.require_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no result within {limit_s:.0f} s: {expression}\n{self._list_missing_targets()}")
            time.sleep(0.2)
        return samples

    def until_scraped(self, *, limit_s: float = LIMIT_S) -> None:
        """Wait until every target has been scraped. Raises TimeoutError, with the errors of the others."""
        deadline = time.monotonic() + limit_s
        while not (found := self.targets()) or any(each["health"] != "up" for each in found):
            self._component.require_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not scraped within {limit_s:.0f} s:\n{self._list_missing_targets()}")
            time.sleep(0.2)

    def _list_missing_targets(self) -> str:
        return "\n".join(f"{each['scrapeUrl']} {each['health']} {each['lastError']}" for each in self.targets())

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        wait_for(done, alive=[self._component], timeout_s=LIMIT_S, what=what)

    def _ask(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        answer = self._http.get(f"{self.url}/api/v1/{path}", params=dict(query)).json()
        if answer["status"] != "success":
            raise QueryRefused(f"{query.get('query', path)}: {answer['error']}")
        data: dict[str, Any] = answer["data"]
        return data

    def _write(self, scraped: Sequence[Scrape]) -> None:
        every = f"{self._interval_s}s"
        config: dict[str, Any] = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(path) for path in self._rules],
            "scrape_configs": list(scraped),
        }
        if self._alertmanagers:
            config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": list(self._alertmanagers)}]}]}
        (self._folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
