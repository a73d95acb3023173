"""A headless Chromium of Debian's, driven by Selenium; it reaches nothing but loopback."""

from collections.abc import Iterator

import pytest
from tests.browser.chromium import Browser, started
from tests.machine import require


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    require("chromium", "chromedriver")
    with started() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """With nothing of another test's in it; at the end it has loaded nothing from outside, and logged no error."""
    chromium.forget()
    yield chromium
    chromium.open("about:blank")
