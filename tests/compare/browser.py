# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, spoken to by the DevTools protocol over a pipe: no package is needed, and no network is open."""
import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "google-chrome", "chromium-browser")
LIMIT_S = 120  # for one answer, on a busy machine


def find():
    """Path of a Chromium: in PATH, or where tools/setup puts one; None."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    kept = pathlib.Path(__file__).resolve().parents[2] / ".venv" / "browsers"
    return found or next((str(path) for name in (*NAMES, "headless_shell") for path in sorted(kept.glob(f"**/{name}"))), None)


class Page:
    """One page with what it said and asked for: `complaints`, `requests`, `dialogs`."""

    def __init__(self, browser, width, dark, script=True):
        self.browser, self.complaints, self.requests, self.dialogs = browser, [], [], []
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.loaded = False

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def open(self, path):
        self.loaded = False
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        while not self.loaded:
            self.browser.read()

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path):
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def take(self, method, params):
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(params)[:400])


class Browser:
    def __init__(self, path, folder):
        down, self.to = os.pipe()
        self.source, up = os.pipe()
        options = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
                   "--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder}"]
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        shell = ["bash", "-c", f'exec "$0" "$@" 3<&{down} 4>&{up}', path, *options]
        self.process = subprocess.Popen(shell, pass_fds=(down, up), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down)
        os.close(up)
        self.rest, self.count, self.answers, self.pages = b"", 0, {}, {}

    def read(self):
        """Takes one message, whatever it is."""
        limit = time.monotonic() + LIMIT_S
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.source], [], [], max(limit - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            more = os.read(self.source, 1 << 20)
            assert more, "the browser ended"
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(text)
        if "id" in message:
            self.answers[message["id"]] = message
        elif message.get("sessionId") in self.pages:
            self.pages[message["sessionId"]].take(message["method"], message["params"])

    def call(self, method, session=None, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while self.count not in self.answers:
            self.read()
        answer = self.answers.pop(self.count)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def close(self):
        with contextlib.suppress(AssertionError, OSError):
            os.write(self.to, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.source)


@contextlib.contextmanager
def started(path):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(path, folder)
        try:
            yield browser
        finally:
            browser.close()
