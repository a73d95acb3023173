"""`make screenshots`: docs/grafana-*.png, the dashboards of parts that run, scraped by a Prometheus.

Drawn by dashboard_page.py, which is not Grafana.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.browser.chromium import Browser, started  # noqa: E402 - run as a script, from anywhere
from tests.browser.dashboard_page import WIDTH, page  # noqa: E402
from tests.browser.screenshots import save  # noqa: E402
from tests.cluster.dashboards.dashboard_queries import dashboards, filled_in  # noqa: E402
from tests.cluster.dashboards.scraped_fleet import scraped_fleet  # noqa: E402
from tests.cluster.ipujob.operator_bed import Bed  # noqa: E402

from muster_kube.api.client import KubeClient  # noqa: E402
from muster_kube.api.config import load_config  # noqa: E402
from muster_sandbox.controlplane.cluster import ControlPlane  # noqa: E402
from muster_sandbox.controlplane.install import install  # noqa: E402
from muster_sandbox.programs.control_plane import find_or_build  # noqa: E402
from muster_sandbox.prometheus import Prometheus, PrometheusSeries, find_programs  # noqa: E402
from muster_sandbox.simulation.kubelets import Kubelets  # noqa: E402
from muster_sandbox.simulation.nodes import SimulatedNodes  # noqa: E402

HONEST = "Drawn from its queries by a script of Muster's, not by Grafana"
POINTS = 240
AFTERWARDS_S = 30.0  # so that what comes last is to be seen


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def main() -> int:
    found = find_programs(say)
    with ControlPlane(find_or_build(say)) as plane, tempfile.TemporaryDirectory() as place:
        install(plane.admin)
        plane.admin.create_namespace("training")
        config = load_config(plane.kubeconfig)
        async with KubeClient(config, user_agent="muster-pictures") as api, Kubelets(api) as kubelets:
            bed = Bed(api, plane, kubelets, SimulatedNodes(api), Path(place), "training")
            try:
                async with scraped_fleet(bed, found, Path(place) / "stage") as stage:
                    since = time.time()
                    await stage.a_bad_night()
                    await asyncio.sleep(AFTERWARDS_S)
                    names = list(stage.nodes)
                    await asyncio.to_thread(draw, stage.prometheus, names[2], since, time.time())
            finally:
                await bed.close()
    return 0


def draw(prometheus: Prometheus, node: str, since_s: float, until_s: float) -> None:
    """All dashboards, as they were within this time."""
    step = max(1.0, (until_s - since_s) / POINTS)
    with started() as browser:
        for uid, board in dashboards().items():
            answers: dict[int, list[list[PrometheusSeries]]] = {}
            for panel in board["panels"]:
                answers[panel["id"]] = [
                    _asked(prometheus, filled_in(each["expr"], node=node), each["instant"], since_s, until_s, step)
                    for each in panel.get("targets", [])
                ]
            chosen = f"node {node}" if uid == "muster-node" else "everything chosen"
            text, height = page(board, answers, f"{chosen}. {HONEST}")
            _show(browser, text, height)
            save(browser, ROOT / "docs" / f"grafana-{uid.removeprefix('muster-')}.png")


def _asked(
    prometheus: Prometheus, expr: str, instant: bool, since_s: float, until_s: float, step_s: float
) -> list[PrometheusSeries]:
    if instant:
        return [
            PrometheusSeries(each.labels, [(each.time_s, each.value)]) for each in prometheus.query(expr, at_s=until_s)
        ]
    return prometheus.query_range(expr, start_s=since_s, end_s=until_s, step_s=step_s)


def _show(browser: Browser, text: str, height: int) -> None:
    browser.window(WIDTH, height)
    with tempfile.NamedTemporaryFile("w", suffix=".html") as file:
        file.write(text)
        file.flush()
        browser.open(f"file://{file.name}")
        browser.until(lambda: browser.run("return document.readyState") == "complete", "the page is there")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
