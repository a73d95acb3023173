"""Chromium as the tests, the bench and the screenshots use it."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import JavascriptException, StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

GUARD_S = 120.0  # what hangs fails, what is slow does not
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # it refuses to run as root with one
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--hide-scrollbars",
)


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def forget(self) -> None:
        """What was logged until now."""
        for kind in ("performance", "browser"):
            self.driver.get_log(kind)  # type: ignore[no-untyped-call] # Selenium's own lack

    def window(self, width: int, height: int, *, dark: bool = True, scale: float = 1.0) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.cdp("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", {"features": [scheme]})

    def cdp(self, command: str, arguments: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        """Once it is there; a list that changes at that moment has another one in its place."""

        def clicked() -> bool:
            for element in self.find(selector)[:1]:
                element.click()
                return True
            return False

        self.until(clicked, f"{selector} is there")

    def text(self, selector: str) -> str:
        """What a person reads there, on one line."""
        return " ".join(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector).split())

    def until(self, ask: Callable[[], Any], what: str) -> Any:
        """What ``ask`` returns once that is true."""
        deadline = time.monotonic() + GUARD_S
        last: Any = None
        while time.monotonic() < deadline:
            try:
                last = ask()
            except (StaleElementReferenceException, JavascriptException) as error:
                last = error  # the page has put another element in its place
            if last and not isinstance(last, Exception):
                return last
            time.sleep(0.02)
        raise AssertionError(
            f"not within {GUARD_S} s: {what}; last: {last!r}; the page says {self.text('body')[:2000]}"
        )

    def until_text(self, selector: str, wanted: str) -> None:
        self.until(lambda: wanted in self.text(selector), f"{selector} says {wanted!r}")

    def requests(self) -> list[str]:
        """Addresses that were asked for since this was last called."""
        logged = self.driver.get_log("performance")  # type: ignore[no-untyped-call] # Selenium's own lack
        messages = [json.loads(entry["message"])["message"] for entry in logged]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the console has of warnings and errors since this was last called."""
        logged = self.driver.get_log("browser")  # type: ignore[no-untyped-call] # Selenium's own lack
        return [entry["message"] for entry in logged if entry["level"] in ("WARNING", "SEVERE")]


@contextmanager
def started() -> Iterator[Browser]:
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.set_page_load_timeout(GUARD_S)
        driver.set_script_timeout(GUARD_S)
        browser = Browser(driver)
        browser.window(1600, 1000)
        yield browser
    finally:
        driver.quit()
