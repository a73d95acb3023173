"""Devices on the fleet page in Chromium: a node that works without one of its eight GPUs."""

import time
from collections.abc import Iterator

import pytest
from tests.browser.chromium import Browser
from tests.browser.fleet_server import ThreadedFleetServer, served
from tests.browser.sample_fleet import XID48, make_fleet

NODES = 40
MUSTERS, DRIVERS, INFORMS, WHOLE = (f"h100-h001-{number:02d}" for number in (1, 2, 3, 4))


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedFleetServer]:
    fleet = make_fleet(NODES, time.time())
    fleet.give_gpus(*(name for name in fleet.nodes if name.startswith("h100")))
    fleet.keep_out(MUSTERS, XID48, ago=7200)
    fleet.taint_gpu(MUSTERS, 3, ago=7000)
    fleet.taint_gpu(DRIVERS, 1, ago=3600)
    fleet.taint_gpu(INFORMS, 1, value="31", effect="None")
    with served(fleet) as running:
        yield running


@pytest.fixture
def page(server: ThreadedFleetServer, browser: Browser) -> Iterator[Browser]:
    browser.window(1600, 1000)
    browser.open(server.stand.url)
    browser.until_text("#live", "live")
    browser.until_text("#chips [data-state='Q']", "2")
    browser.until(lambda: browser.run("return document.getElementById('map').dataset.drawn"), "the map is drawn")
    yield browser
    assert browser.complaints() == []


def dark_parts(browser: Browser, name: str) -> list[bool]:
    """For each of the eight parts of the node's square, in the order of its devices, whether its middle is dark."""
    script = """
      const [name, done] = [arguments[0], arguments[arguments.length - 1]];
      const modules = [import('./page/layout.js'), import('./page/model.js')];
      Promise.all(modules).then(async ([{ places, fit, gapOf }, { Fleet }]) => {
        const fleet = new Fleet();
        fleet.load(await (await fetch('api/fleet')).json());
        const scroller = document.getElementById('scroller');
        const laid = fit(fleet.groups, scroller.clientWidth, scroller.clientHeight, 0);
        const { x, y } = places(laid).get(name);
        const size = laid.pitch - gapOf(laid.pitch);
        requestAnimationFrame(() => requestAnimationFrame(() => {
          const copy = new OffscreenCanvas(size, size).getContext('2d', { willReadFrequently: true });
          copy.drawImage(document.getElementById('map'), x, y, size, size, 0, 0, size, size);
          const light = (part) => {
            const [column, row] = [part % 4, Math.floor(part / 4)];
            const { data } = copy.getImageData((column + 0.5) * size / 4, (row + 0.5) * size / 2, 1, 1);
            return data[0] + data[1] + data[2];
          };
          done([0, 1, 2, 3, 4, 5, 6, 7].map((part) => light(part) < 100));
        }));
      });
    """
    return list(browser.driver.execute_async_script(script, name))


def squares(browser: Browser) -> str:
    """The classes of the panel's squares, in short."""
    return "".join(browser.run("return [...document.querySelectorAll('.device')].map((e) => e.className.slice(-1))"))


def open_node(browser: Browser, name: str) -> None:
    browser.run("location.hash = arguments[0]", f"node={name}")
    browser.until_text("#panel-title", name)
    browser.until(lambda: browser.find(".device"), "the panel has squares")


def test_the_square_of_a_node_has_eight_parts_and_one_is_dark(page: Browser) -> None:
    assert dark_parts(page, MUSTERS) == [number == 3 for number in range(8)]
    assert dark_parts(page, DRIVERS) == [number == 1 for number in range(8)]
    assert not any(dark_parts(page, WHOLE))


def test_nodes_that_work_without_a_device_are_not_counted_as_broken(page: Browser) -> None:
    head = page.text("#headline").split()
    assert "2" in head
    assert str(NODES) in head
    assert page.driver.title == "Muster"
    page.click("#chips [data-state='Q']")
    page.until_text("#lists", DRIVERS)
    assert MUSTERS in page.text("#lists")
    assert INFORMS not in page.text("#lists")


def test_the_panel_shows_the_drivers_taint_beside_what_muster_knows(page: Browser) -> None:
    open_node(page, MUSTERS)
    assert squares(page) == "sssQssss"  # s: the last letter of "pass"
    panel = page.text("#panel")
    assert {"gpu.nvidia.com/xid=79:NoSchedule", "0000:5e:00.0", "gpu-3", "Xid48"} <= set(panel.split())
    open_node(page, DRIVERS)
    page.until(lambda: squares(page) == "sDssssss", "the other node's squares")
    assert "Xid48" not in page.text("#panel")


def test_a_taint_that_only_informs_keeps_its_device_in_use_and_is_in_the_panel(page: Browser) -> None:
    open_node(page, INFORMS)
    assert squares(page) == "ssssssss"
    assert "gpu.nvidia.com/xid=31:None" in page.text("#panel")


def test_on_a_small_light_screen_the_squares_are_there(page: Browser) -> None:
    page.window(480, 900, dark=False)
    open_node(page, MUSTERS)
    assert len(squares(page)) == 8
    assert page.run("return document.documentElement.scrollWidth") <= 480
