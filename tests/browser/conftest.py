"""A headless Chromium of Debian's, driven by Selenium; it reaches nothing but loopback."""

import os
import shutil
from collections.abc import Iterator

import pytest
from tests.browser.chromium import Browser, started

MISSING = [package for package, program in (("chromium", "chromium"), ("chromium-driver", "chromedriver"))
           if shutil.which(program) is None]  # fmt: skip


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if MISSING and not os.environ.get("CI"):
        pytest.skip(f"the fleet page was NOT tested: needs Debian's {' and '.join(MISSING)}")
    assert not MISSING, f"needs Debian's {' and '.join(MISSING)}"
    with started() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """With nothing of another test's in it; at the end it has loaded nothing from outside, and logged no error."""
    chromium.forget()
    yield chromium
    chromium.open("about:blank")
