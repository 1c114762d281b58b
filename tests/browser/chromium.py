"""Debian's Chromium in headless mode, controlled with the DevTools protocol over pipes: no driver, no port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe", "--force-color-profile=srgb",
)  # fmt: skip
REPLY_TIMEOUT_S: Final = 240.0  # for one reply; the first takes 1 to 3 s, with a load of 50 on two cores 60 s and more


class Browser:
    """One Chromium with one page. A context manager that kills the process group on exit."""

    def __init__(self, command: str = "chromium") -> None:
        self._command = command
        self._number, self._buffer, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(prefix="megatrix-chromium-", ignore_cleanup_errors=True)
        commands, self._write = _pipe()
        self._read, replies = _pipe()

        def place() -> None:  # Chromium reads from 3 and writes to 4
            os.dup2(commands, 3)
            os.dup2(replies, 4)

        self._process = subprocess.Popen(
            [self._command, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(3, 4), preexec_fn=place, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(replies)
        try:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.send(f"{domain}.enable")
            self.send("Emulation.setFocusEmulationEnabled", enabled=True)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process of the browser."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events received meanwhile are added to `events`.

        Raises AssertionError if the method fails or no reply arrives within REPLY_TIMEOUT_S.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        while True:
            reply = self._next(deadline)
            if reply.get("id") == self._number:
                if "error" in reply:
                    raise AssertionError(f"{method}: {reply['error']}")
                return dict(reply["result"])
            self.events.append(reply)

    def open(self, url: str) -> float:
        """Load a page; return the seconds until it was loaded and its scripts had run."""
        self.send(
            "Page.navigate", url="about:blank"
        )  # otherwise a URL that differs only in its fragment would not reload the page
        self.js("1")
        self.events.clear()
        start = time.monotonic()
        self.send("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(start + REPLY_TIMEOUT_S))
        return time.monotonic() - start

    def js(self, expression: str) -> Any:
        """Evaluate an expression in the page, await a promise, and return the value."""
        reply = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in reply:
            raise AssertionError(f"{expression[:200]}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def width(self, width: int, height: int = 900) -> None:
        """Set the size of the viewport in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def allow_clipboard(self) -> None:
        """Grant pages access to the clipboard."""
        session, self._session = self._session, ""
        self.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        self._session = session

    def screenshot(self, path: Path) -> None:
        """Write the visible part of the page as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def errors(self) -> list[str]:
        """Return every error since the page was opened: exceptions, console errors, blocked content."""
        self.js("1")  # its reply arrives after the events of all earlier errors
        return [
            json.dumps(event["params"])
            for event in self.events
            if event.get("method") == "Runtime.exceptionThrown"
            or (event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error")
            or (event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "assert"))
        ]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise AssertionError(f"no reply from Chromium within {REPLY_TIMEOUT_S:g} s")
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                raise AssertionError(
                    f"Chromium exited with {self._process.wait()}; is it installed? (apt-get install chromium)"
                )
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


def _pipe() -> tuple[int, int]:
    """Return a pipe's read and write end, neither on descriptor 3 or 4, which Chromium uses."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
