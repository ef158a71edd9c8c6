"""A headless Chromium for the tests of the page."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")

QUIET = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser:
    """One window, and what the tests do with it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, site: Path, fragment: str = "", *, width: int = 1200, scheme: str = "light", **media: str) -> None:
        """The page of the folder `site`, freshly loaded, in a window of that width in CSS pixels."""
        self.driver.get("about:blank")
        self.logs("browser"), self.logs("performance")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = {"prefers-color-scheme": scheme, **{name.replace("_", "-"): value for name, value in media.items()}}
        given = [{"name": name, "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": given})
        self.driver.get((site / "index.html").as_uri() + fragment)
        self.until(lambda: self.all("#panels .panel") or self.all("#about .quiet") or self.all("#table .quiet"))

    def until(self, condition: Callable[[], Any]) -> Any:
        return WebDriverWait(self.driver, 10, poll_frequency=0.03).until(lambda _: condition())

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def one(self, selector: str) -> WebElement:
        (element,) = self.all(selector)
        return element

    def texts(self, selector: str) -> list[str]:
        """The text of each element, hidden words included."""
        return list(self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector))

    def pick(self, name: str, value: str) -> None:
        """Choose in the select with that id, and wait until the panels have been drawn anew."""
        before = self.all("#panels .panel")
        Select(self.one(f"#{name}")).select_by_value(value)
        self.until(lambda: self.all("#panels .panel") and self.all("#panels .panel") != before)

    def chosen(self, name: str) -> str:
        return str(Select(self.one(f"#{name}")).first_selected_option.get_attribute("value"))

    def logs(self, kind: str) -> list[dict[str, Any]]:
        return list(self.driver.get_log(kind))  # type: ignore[no-untyped-call]

    def complaints(self) -> list[str]:
        """What stands in the console since the page was opened."""
        return [entry["message"] for entry in self.logs("browser")]

    def requests(self) -> list[str]:
        """The addresses asked for since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@contextmanager
def started_browser(profile: Path) -> Iterator[Browser]:
    """A browser with the empty folder `profile`, ended afterwards."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in (*QUIET, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
