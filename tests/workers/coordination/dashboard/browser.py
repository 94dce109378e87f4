"""A real Chromium without a screen, driven through chromedriver by the WebDriver protocol
(https://www.w3.org/TR/webdriver2/). Skips where they are not installed."""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.tools import require
from tests.waiting import PATIENCE, until

__all__ = ["Browser", "browser"]


class Browser:
    """One window."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._session = ""

    def begin(self, chromium: str, profile: Path, width: int, height: int, dark: bool) -> None:
        """Opens the window."""
        options = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"]
        options += [f"--user-data-dir={profile}", f"--window-size={width},{height}", "--hide-scrollbars"]
        options += ["--blink-settings=preferredColorScheme=0"] if dark else []
        wanted = {"goog:chromeOptions": {"binary": chromium, "args": options}, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"
        self.resize(width, height)

    def open(self, url: str) -> None:
        """Goes to a page."""
        self._post(f"{self._session}/url", {"url": url})

    def do(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self._post(f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, name: str) -> str:
        """Of the element with this id."""
        return str(self.do("return document.getElementById(arguments[0]).textContent", name))

    def resize(self, width: int, height: int) -> None:
        """Lets the page be so large: a window itself is never narrower than 500."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        body = {"cmd": "Emulation.setDeviceMetricsOverride", "params": size}
        self._post(f"{self._session}/goog/cdp/execute", body)

    def press(self, keys: str) -> None:
        """Keys, at whatever has the focus."""
        actions = [
            step for key in keys for step in ({"type": "keyDown", "value": key}, {"type": "keyUp", "value": key})
        ]
        body = {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        self._post(f"{self._session}/actions", body)

    def until(self, script: str, seconds: float = PATIENCE) -> Any:
        """Waits for a script to return something true."""
        return until(lambda: self.do(script), seconds, script, every=0.05)

    def complaints(self) -> list[str]:
        """What the console was told since the last time."""
        return [entry["message"] for entry in self._post(f"{self._session}/se/log", {"type": "browser"})]

    def picture(self, path: Path) -> None:
        """What there is to be seen, for people."""
        with urllib.request.urlopen(f"{self._driver}{self._session}/screenshot", timeout=60) as answer:
            path.write_bytes(base64.b64decode(json.load(answer)["value"]))

    def end(self) -> None:
        """Closes the window."""
        if self._session:
            request = urllib.request.Request(f"{self._driver}{self._session}", method="DELETE")
            urllib.request.urlopen(request, timeout=60).close()

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self._driver}{path}", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as fault:
            with fault:
                raise AssertionError(json.load(fault)["value"]["message"]) from None


@contextmanager
def browser(folder: Path, width: int = 1280, height: int = 1400, dark: bool = False) -> Iterator[Browser]:
    """A window, with its traces in `folder`."""
    driver, chromium = require("chromedriver"), require("chromium")
    output = folder / "chromedriver.txt"
    with output.open("w") as stream:
        process = subprocess.Popen([driver, "--port=0"], stdout=stream, stderr=stream, start_new_session=True)
    found = None
    try:
        found = Browser(f"http://127.0.0.1:{until(lambda: _port(output), what='the port of chromedriver')}")
        found.begin(chromium, folder / "profile", width, height, dark)
        yield found
    finally:
        if found is not None:
            found.end()
        process.terminate()
        process.wait(30)


def _port(output: Path) -> int | None:
    """As chromedriver says: "... was started successfully on port 12345."."""
    _, found, rest = output.read_text().partition("successfully on port ")
    return int(rest.partition(".")[0]) if found and "." in rest else None
