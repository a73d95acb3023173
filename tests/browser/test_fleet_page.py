"""The fleet page in Chromium, over 10,000 nodes: what an operator sees, does, and is kept from doing."""

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from tests.browser.chromium import Browser
from tests.browser.fleet_server import ThreadedFleetServer, served
from tests.browser.sample_fleet import bad_night, make_fleet, xid79
from tests.kube.conftest import Reply

from muster_tainter.budgets.incidents import Incident
from muster_tainter.budgets.pool_usage import BudgetUsage
from muster_tainter.policy.spares import SpareRole

NODES = 10_000
BROKEN = "h100-h087-19"  # waits for room
QUIET = "h100-h003-05"  # passes
SPARE, REPLACEMENT = "h100-h003-06", "h100-h003-07"


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedFleetServer]:
    now = time.time()
    fleet = bad_night(make_fleet(NODES, now))
    fleet.assign(SPARE, SpareRole.SPARE, tested_ago=2 * 86_400, ago=900)
    fleet.assign(REPLACEMENT, SpareRole.REPLACEMENT, "h100-h087-01", ago=60)
    with served(fleet) as running:
        running.stand.usage = [BudgetUsage("h100", "", "tainted", 34, 144, 110, 11)]
        ground = ("topology.kubernetes.io/rack", "h087")
        running.stand.incidents = [Incident("i1", "nic", "LinkDown", ground, now - 260, 19)]
        yield running


@pytest.fixture
def page(server: ThreadedFleetServer, browser: Browser) -> Iterator[Browser]:
    """Opened, and drawn; nothing was loaded from elsewhere, and nothing went wrong in it."""
    browser.window(1600, 1000)
    browser.open(server.stand.url)
    browser.until(lambda: browser.run("return document.getElementById('map').dataset.drawn"), "the map is drawn")
    browser.until_text("#live", "live")
    yield browser
    outside = [url for url in browser.requests() if not url.startswith((server.stand.url, "data:,", "about:"))]
    assert outside == []
    assert [text for text in browser.complaints() if not _is_expected(text)] == []


def _is_expected(text: str) -> bool:
    """The console notes each answer that is no 2xx: these were asked for."""
    return "api/clear" in text and ("401" in text or "403" in text)


@pytest.fixture
def mended(server: ThreadedFleetServer) -> Iterator[Callable[[str], None]]:
    """Nodes named here pass again at the end of the test."""
    names: list[str] = []
    yield names.append
    fleet = server.stand.fleet
    for name in names:
        known = fleet.nodes[name]
        pool, rack = known.metadata.labels["example.com/pool"], known.metadata.labels["topology.kubernetes.io/rack"]
        fleet.add(name, pool, rack)
        server.call(partial(server.stand.change, name))


def break_live(server: ThreadedFleetServer, name: str) -> None:
    server.stand.fleet.break_node(name, "dmesg", xid79())
    server.call(lambda: server.stand.change(name))


def colour(browser: Browser, name: str) -> list[float]:
    """Red, green and blue of the node's square, in the mean."""
    script = """
      const [name, done] = [arguments[0], arguments[arguments.length - 1]];
      import('./page/layout.js').then(({ places, fit }) => import('./page/model.js').then(async ({ Fleet }) => {
        const fleet = new Fleet();
        fleet.load(await (await fetch('api/fleet')).json());
        const scroller = document.getElementById('scroller');
        const laid = fit(fleet.groups, scroller.clientWidth, scroller.clientHeight, 0);
        const { x, y } = places(laid).get(name);
        scroller.scrollTop = Math.max(0, y - 200);
        requestAnimationFrame(() => requestAnimationFrame(() => {
          const size = laid.pitch - 1;
          const copy = new OffscreenCanvas(size, size).getContext('2d', { willReadFrequently: true });
          const place = [x, y - scroller.scrollTop, size, size];
          copy.drawImage(document.getElementById('map'), ...place, 0, 0, size, size);
          const { data } = copy.getImageData(0, 0, size, size);
          const mean = (part) => data.filter((_, i) => i % 4 === part).reduce((a, b) => a + b) / (data.length / 4);
          done([0, 1, 2].map(mean));
        }));
      }));
    """
    return list(browser.driver.execute_async_script(script, name))


def test_at_a_glance_it_says_what_is_broken_where_since_when_and_what_waits(page: Browser) -> None:
    assert re.search(r"\b49 .*\b10,000 .*\b32 .*\b11 .*\b6 ", page.text("#headline"))
    assert BROKEN in page.text("#newest")
    assert re.search(r"LinkDown \d+ min .*\bh100\b.* 8 of 8 ", page.text("#newest"))
    lists = page.text("#lists")
    assert "LinkDown on 19 nodes · rack h087" in lists
    assert re.search(r"\b8 tainted\b.*\b11 waiting\b", lists)
    assert page.text("#heads").count("nodes") == 3
    assert "34 of 144, room for 110" in page.text("#heads")
    assert page.driver.title == "(49) Muster"


def test_there_is_no_element_for_each_node(page: Browser) -> None:
    assert page.run("return document.getElementsByTagName('*').length") < 3000


def test_the_map_shows_each_node_in_the_colour_of_its_state(page: Browser) -> None:
    red, green, _ = colour(page, "h100-h087-01")
    assert red > 2 * green  # tainted
    red, green, blue = colour(page, QUIET)
    assert green > red
    assert green > blue


def test_spares_and_replacements_have_their_own_look_and_the_panel_says_since_when(page: Browser) -> None:
    for name in (SPARE, REPLACEMENT):
        red, green, blue = colour(page, name)
        assert blue > red > green  # violet
    assert page.text("#chips [data-state='R']") == page.text("#chips [data-state='L']").replace("Replacement", "Spare")
    page.click("#chips [data-state='R']")
    page.until_text("#lists", SPARE)
    assert REPLACEMENT not in page.text("#lists")
    page.click("#chips [data-state='R']")
    page.one("#search").send_keys(SPARE, Keys.ENTER)
    page.until_text("#panel", "pciebw within 1 d")
    assert re.search(r"role spare since .*\d+ min ago.*ready no", page.text("#panel"))
    page.one("#search").clear()
    page.one("#search").send_keys(REPLACEMENT, Keys.ENTER)
    page.until_text("#panel", "replacement for h100-h087-01")


def test_a_fault_appears_by_itself(page: Browser, server: ThreadedFleetServer, mended: Callable[[str], None]) -> None:
    mended(QUIET)
    before = page.run("return document.getElementById('map').dataset.drawn")
    break_live(server, QUIET)
    page.until_text("#headline", "50 of 10,000 nodes are broken: 33 tainted")
    page.until_text("#newest", QUIET)
    page.until_text("#announcement", f"{QUIET}, pool h100 · h003, tainted, Xid79")
    page.until(lambda: page.run("return document.getElementById('map').dataset.drawn") != before, "it is drawn")
    red, green, _ = colour(page, QUIET)
    assert red > 2 * green


def test_what_is_mended_goes_by_itself(page: Browser, server: ThreadedFleetServer) -> None:
    break_live(server, QUIET)
    page.until_text("#headline", "33 tainted")
    server.stand.fleet.add(QUIET, "h100", "h003")
    server.call(lambda: server.stand.change(QUIET))
    page.until_text("#headline", "32 tainted")


def test_the_buttons_filter_by_state(page: Browser) -> None:
    page.click("#chips [data-state='N']")
    page.until_text("#matches", "37")
    assert page.text("#lists").startswith("Warning 37")
    assert page.one("#chips [data-state='N']").get_attribute("aria-pressed") == "true"
    page.click("#chips [data-state='N']")
    page.until_text("#lists", "Incidents")


def test_the_search_finds_names_places_and_reasons(page: Browser) -> None:
    search = page.one("#search")
    search.send_keys("h003")
    page.until_text("#matches", "32")
    search.clear()
    search.send_keys("dmesg XID31")
    page.until_text("#matches", "6")
    assert page.text("#lists").count("MMU Fault") == 6
    assert "LinkDown" not in page.text("#lists")
    search.clear()
    search.send_keys("no-such-thing")
    page.until_text("#lists", "No node matches.")


def test_enter_in_the_search_opens_the_node_of_that_name(page: Browser) -> None:
    page.one("#search").send_keys(QUIET, Keys.ENTER)
    page.until_text("#panel", "every check passed")


def test_a_click_on_the_map_opens_the_node_under_it(page: Browser) -> None:
    canvas = page.one("#map")
    # in the first rack: below the pool's heading and the rack's name
    across, down = 8 - canvas.size["width"] // 2, 62 - canvas.size["height"] // 2
    ActionChains(page.driver).move_to_element_with_offset(canvas, across, down).click().perform()
    page.until_text("#panel", "h100-h001-0")


def test_the_panel_has_evidence_what_was_done_what_ends_it_and_what_was_before(page: Browser) -> None:
    page.one("#search").send_keys("h100-h087-04", Keys.ENTER)
    page.until_text("#panel", "Recently closed")
    text = page.text("#panel")
    for wanted in (
        "pool h100 · h087", "tainted by rule hardware", "mlx5_3 port 1: state DOWN", "limit 400",
        "inspection by a person", "set muster.dev/faulty=true:NoSchedule, rule hardware",
        "verification: nic passes 3 times", "min ago",
        "after a reboot: boot 7c1d", "by an operator: ada@example.com", "BandwidthLow", "for 54 min",
    ):  # fmt: skip
        assert wanted in text


def test_the_panel_follows_what_becomes_of_its_node(
    page: Browser, server: ThreadedFleetServer, mended: Callable[[str], None]
) -> None:
    mended(QUIET)
    page.one("#search").send_keys(QUIET, Keys.ENTER)
    page.until_text("#panel", "every check passed")
    break_live(server, QUIET)
    page.until_text("#panel", "GPU has fallen off the bus")


def test_the_address_holds_what_is_looked_at(page: Browser, server: ThreadedFleetServer) -> None:
    page.one("#search").send_keys(BROKEN, Keys.ENTER)
    page.until_text("#panel", "Withheld")
    address = page.driver.current_url
    assert address.endswith(f"#node={BROKEN}&q={BROKEN}")
    page.open("about:blank")
    page.open(address)
    page.until_text("#panel", "Withheld")


def test_all_of_it_can_be_done_with_the_keyboard(page: Browser) -> None:
    keys = ActionChains(page.driver)
    page.one("#map").send_keys("n")
    page.until(lambda: page.text("#announcement") != "", "the first broken node is announced")
    first = page.text("#announcement").partition(",")[0]
    page.one("#map").send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page.text("#announcement").partition(",")[0] != first, "another node is announced")
    page.one("#map").send_keys(Keys.ARROW_LEFT, Keys.ENTER)
    page.until_text("#panel-title", first)
    keys.send_keys(Keys.ESCAPE).perform()
    page.until(lambda: page.find("#panel[hidden]"), "Escape closes the panel")
    assert page.driver.switch_to.active_element.get_attribute("id") == "map"
    keys = ActionChains(page.driver)
    keys.send_keys("/").send_keys("xid48").perform()
    page.until(lambda: "Xid48" in page.text("#lists") and "LinkDown" not in page.text("#lists"), "the search is used")


def test_every_control_has_a_name(page: Browser) -> None:
    page.one("#search").send_keys("h100-h087-04", Keys.ENTER)
    page.until_text("#panel", "Recently closed")
    tree = page.cdp("Accessibility.getFullAXTree", {})["nodes"]
    controls = [n for n in tree if n.get("role", {}).get("value") in ("button", "searchbox", "application", "textbox")]
    assert len(controls) > 12
    assert [n for n in controls if not n.get("name", {}).get("value")] == []


class Writes:
    """What the API server was asked to write."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def patched(self, asked: Any) -> Reply:
        self.bodies.append(json.loads(asked.body))
        return Reply(200, {"metadata": {"name": BROKEN}})


@pytest.fixture
def writes(server: ThreadedFleetServer) -> Writes:
    made = Writes()
    server.call(lambda: server.stand.script_node(BROKEN, made.patched))
    return made


def ask_to_clear(page: Browser, token: str) -> None:
    page.one("#search").send_keys(BROKEN, Keys.ENTER)
    page.click(".card .button")
    page.until(lambda: page.find("dialog[open] #token"), "the token is asked for")
    page.one("#token").send_keys(token, Keys.ENTER)


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("t-nobody", "the API server rejected this token"),
        ("t-bob", "bob has no permission to patch"),
    ],
)
def test_a_token_without_the_right_clears_nothing(page: Browser, writes: Writes, token: str, said: str) -> None:
    ask_to_clear(page, token)
    page.until_text("dialog .status", said)
    assert writes.bodies == []


def test_a_token_with_the_right_clears_one_fault(page: Browser, writes: Writes) -> None:
    ask_to_clear(page, "t-ada")
    page.until_text("dialog .status", "Cleared by ada: nic nic/mlx5_3.")
    [body] = writes.bodies
    assert [(e["check"], e["component"], e["by"]) for e in body["spec"]["clear"]] == [("nic", "nic/mlx5_3", "ada")]


def test_without_a_token_nothing_is_sent(page: Browser, writes: Writes) -> None:
    page.requests()
    ask_to_clear(page, "")
    assert page.find("dialog[open]")
    assert [url for url in page.requests() if "api/clear" in url] == []


def test_a_pause_and_a_standby_are_said(page: Browser, server: ThreadedFleetServer) -> None:
    stand = server.stand
    try:
        stand.paused, stand.leading = "paused by ada since 2026-01-01T03:00:00Z: switch maintenance", False
        page.until_text("#banners", "Paused by ada since")
        page.until_text("#banners", "switch maintenance. No new taints")
        page.until_text("#leads", "standby")
    finally:
        stand.paused, stand.leading = "", True
    page.until(lambda: not page.text("#banners"), "the banner goes")


def test_what_is_not_live_is_said_and_mends_itself(page: Browser, server: ThreadedFleetServer) -> None:
    page.cdp("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    server.call(server.stand.drop_streams)
    page.until_text("#live", "live")
    page.until(lambda: server.call(lambda: server.stand.feed.listeners) == 1, "it has connected again")
    page.cdp("Network.emulateNetworkConditions", offline)
    server.call(server.stand.drop_streams)
    page.until_text("#banners", "Not live: showing the state of")
    page.cdp("Network.emulateNetworkConditions", offline | {"offline": False})
    page.until(lambda: page.text("#live") == "live", "it is live again")
    page.complaints()  # the console notes each connection that could not be made


def test_in_the_light_and_on_a_small_screen_it_is_all_there(page: Browser) -> None:
    page.window(420, 900, dark=False)
    page.until(lambda: page.run("return document.documentElement.scrollWidth") <= 420, "nothing is cut off")
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(243, 245, 248)"
    page.until_text("#lists", "LinkDown on 19 nodes")


def test_names_and_messages_are_text_whatever_they_hold(
    page: Browser, server: ThreadedFleetServer, mended: Callable[[str], None]
) -> None:
    mended(QUIET)
    evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    server.stand.fleet.break_node(QUIET, "dmesg", xid79_saying(evil))
    server.call(lambda: server.stand.change(QUIET))
    page.until_text("#lists", "<img src=x")
    page.one("#search").send_keys(QUIET, Keys.ENTER)
    page.until_text("#panel", "<script>")
    assert page.find("#panel img, #lists img") == []
    assert page.driver.title == "(50) Muster"


def xid79_saying(message: str) -> Any:
    return msgspec.structs.replace(xid79(), message=message)
