"""Chromium without a window, spoken to through a pipe (DevTools protocol): enough to open a page,
watch it and ask it things.
"""

import base64
import json
import os
import selectors
import shutil
import subprocess
import time

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


class Browser:
    """One page. `events` holds what it reported: requests, messages of the console, exceptions."""

    def __init__(self, profile):
        to_read, self.writer = os.pipe()
        self.reader, to_write = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        shell = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
        ]
        options += [
            "--disable-component-update",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        self.process = subprocess.Popen(
            ["bash", "-c", shell, CHROMIUM, *options, "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.reader, selectors.EVENT_READ)
        self.buffer, self.events, self.count, self.session = b"", [], 0, None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method, **parameters):
        """Send a command and return its answer."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters} | (
            {"sessionId": self.session} if self.session else {}
        )
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for answer in self._receive():
                if answer.get("id") == self.count:
                    if "error" in answer:
                        raise RuntimeError(f"{method}: {answer['error']}")
                    return answer["result"]
        raise TimeoutError(method)

    def _receive(self):
        if self.selector.select(0.2):
            self.buffer += os.read(self.reader, 1 << 20)
        *messages, self.buffer = self.buffer.split(b"\0")
        answers = [json.loads(message) for message in messages]
        self.events += [answer for answer in answers if "method" in answer]
        return [answer for answer in answers if "id" in answer]

    def open(self, url):
        """Go to a page and wait until it is loaded."""
        before = len(self.events)
        self("Page.navigate", url=url)
        end = time.monotonic() + 60
        while not any(event["method"] == "Page.loadEventFired" for event in self.events[before:]):
            assert time.monotonic() < end, "the page did not load"
            self._receive()

    def ask(self, expression):
        """The value of an expression on the page; promises are waited for."""
        answer = self(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def show(self, width, height, dark):
        """Take the size of a screen and a theme."""
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self(
            "Emulation.setEmulatedMedia",
            features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}],
        )

    def picture(self, path, whole=False):
        """Save what is shown, or the whole page."""
        data = self("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        os.close(self.writer)
        os.close(self.reader)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
