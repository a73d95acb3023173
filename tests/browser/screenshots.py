"""`make screenshots`: docs/fleet.png and docs/fleet-node.png, of a made fleet of 10,000 nodes on a bad night.

Looks best with Inter (Debian: fonts-inter).
"""

import base64
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from selenium.webdriver.common.keys import Keys  # noqa: E402 - run as a script, from anywhere
from tests.browser.chromium import Browser, started  # noqa: E402
from tests.browser.fleet_server import served  # noqa: E402
from tests.browser.sample_fleet import bad_night, make_fleet  # noqa: E402

from muster_tainter.budgets.incidents import Incident  # noqa: E402
from muster_tainter.budgets.pool_usage import BudgetUsage  # noqa: E402

NODES = 10_000
SHOWN = "h100-h087-04"  # tainted, and has a past
LIMIT_BYTES = 300_000


def main() -> int:
    now = time.time()
    with served(bad_night(make_fleet(NODES, now))) as server, started() as browser:
        stand = server.stand
        stand.usage = [
            BudgetUsage("h100", "", "tainted", 21, 144, 123, 11),
            BudgetUsage("h100", "", "rate", 8, 96, 88, 0),
            BudgetUsage("h100", "h087", "perDomain", 8, 8, 0, 11),
            BudgetUsage("a100", "", "tainted", 8, 180, 172, 0),
            BudgetUsage("ipu", "", "tainted", 3, 160, 157, 0),
        ]
        stand.incidents = [Incident("i1", "nic", "LinkDown", ("topology.kubernetes.io/rack", "h087"), now - 260, 19)]
        browser.window(1720, 1010)
        browser.open(stand.url)
        browser.until_text("#live", "live")
        browser.until_text("#lists", "LinkDown on 19 nodes")
        save(browser, ROOT / "docs" / "fleet.png")
        browser.window(1440, 980)
        browser.one("#search").send_keys(SHOWN, Keys.ENTER)
        browser.until_text("#panel", "Recently closed")
        browser.run("document.getElementById('search').value = ''")
        browser.run("document.getElementById('search').dispatchEvent(new Event('input'))")
        browser.until(lambda: not browser.text("#matches"), "the search is empty")
        save(browser, ROOT / "docs" / "fleet-node.png")
    return 0


def save(browser: Browser, path: Path) -> None:
    browser.run("document.activeElement.blur()")
    browser.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    picture = base64.b64decode(
        browser.cdp("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": False})["data"]
    )
    if len(picture) > LIMIT_BYTES:
        raise RuntimeError(f"{path}: {len(picture)} bytes, expected at most {LIMIT_BYTES}")
    path.write_bytes(picture)
    print(f"{path.relative_to(ROOT)}: {len(picture)} bytes")


if __name__ == "__main__":
    sys.exit(main())
