"""Chromium without a screen, driven over a pipe by its debugging protocol (CDP): pages opened, looked into, photographed."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Navigated(RuntimeError):
    """The page that was asked has been left for another before it could answer."""


class Browser:
    """with Browser() as browser: page = browser.page(390, dark=True); page.open(url)"""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="hearth-test-chromium-")
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        # The browser reads from descriptor 3 and writes to 4.
        self.child = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$0" "$@" 3<&{to_read} 4>&{back_write}', CHROMIUM, "--headless=new", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
             "--disable-background-networking", f"--user-data-dir={self.profile}", "--remote-debugging-pipe"],
            pass_fds=(to_read, back_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(back_write)
        self.number = 0
        self.buffer = b""
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.to)
        try:
            self.child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        os.close(self.back)
        shutil.rmtree(self.profile, ignore_errors=True)

    def take(self, until):
        """The next message, or None when it has not come in time."""
        while b"\0" not in self.buffer:
            if not select.select([self.back], [], [], max(0, until - time.monotonic()))[0]:
                return None
            got = os.read(self.back, 1 << 20)
            if not got:
                raise RuntimeError("the browser ended")
            self.buffer += got
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        until = time.monotonic() + 120
        while True:
            answer = self.take(until)
            if answer is None:
                raise TimeoutError(method)
            if answer.get("id") == self.number:
                if "error" in answer:
                    left = method == "Runtime.evaluate" and answer["error"].get("code") == -32000
                    raise (Navigated if left else RuntimeError)(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def page(self, width, dark=False, height=900):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        return Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"], width, height, dark)


class Page:
    def __init__(self, browser, session, width, height, dark):
        self.browser, self.session, self.width = browser, session, width
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def wait(self, expression, seconds=60):
        until = time.monotonic() + seconds
        while not (found := self.value_now(expression)):
            if time.monotonic() > until:
                raise TimeoutError(f"{expression}; the page says {self.value('document.body.innerText')[:500]!r}")
            time.sleep(0.05)
        return found

    def value_now(self, expression):
        """Its value on the page that is shown; None while one page gives way to the next."""
        try:
            return self.value(f"(found => typeof found === 'object' ? Boolean(found) : found)({expression})")
        except Navigated:
            return None

    def click(self, expression):
        """A click may lead to another page before it is answered."""
        self.value_now(f"{expression}.click()")

    def complaints(self):
        """Errors of the console, exceptions, and what the page's policy refused."""
        self.value("1")  # what came before is here now
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters["exceptionDetails"])[:500])
            if event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(parameters["args"])[:500])
            if event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"] + " " + parameters["entry"].get("url", ""))
        return found

    def photograph(self, path, whole=True):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **(
            {"clip": {"x": 0, "y": 0, "width": self.width, "height": self.value("document.documentElement.scrollHeight"),
                      "scale": 1}} if whole else {}))["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
