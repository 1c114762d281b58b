"""What the index has: resolutions by uv, and downloads, resumed and checked, with the passwords of pip's indexes."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.provision.resolution import Downloader, IndexFile, Resolution, index_files, listed_releases, resolve
from matrix.read.commands import CommandResult


def answering(result: CommandResult, calls: list[list[str]] | None = None) -> object:
    def run(
        command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        if calls is not None:
            calls.append([*command, Path(command[-1]).read_text()])
        return result

    return run


ENVIRON = {"UV": "/bin/uv", "HOME": "/nonexistent"}


def test_pins_of_all_packages_are_returned() -> None:
    calls: list[list[str]] = []
    run = answering(CommandResult(0, "torch==2.9.1\n# a comment\nnumpy==2.5.5\n"), calls)
    found = resolve(["torch==2.9.1", "numpy"], "3.12", run=run, environ=ENVIRON)  # type: ignore[arg-type]
    assert found == Resolution(("torch==2.9.1", "numpy==2.5.5"))
    (command,) = calls
    assert "--no-build" in command
    assert command[-1] == "torch==2.9.1\nnumpy\n"


@pytest.mark.parametrize(
    ("printed", "decided"),
    [
        ("error: No solution found: torch==2.9.1 and numpy<2 are incompatible", True),
        ("error: Failed to fetch: `https://index.example/simple/torch/`", False),
        ("error: cause: error sending request for url", False),
        ("hint: Wheels are required for `x` because building from source is disabled for all packages", False),
    ],
)
def test_problem_without_an_answer_decides_nothing(printed: str, decided: bool) -> None:
    run = answering(CommandResult(1, "", printed))
    found = resolve(["torch"], "3.12", run=run, environ=ENVIRON)  # type: ignore[arg-type]
    assert found.decided is decided
    assert not found.pins
    assert found.problem


def test_without_uv_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    found = resolve(["torch"], "3.12", environ={"PATH": "/nonexistent"})
    assert found == Resolution(problem="there is no uv: pip install uv", decided=False)


@pytest.mark.parametrize("code", [124, 127])  # out of time; not started
def test_uv_that_does_not_answer_decides_nothing(code: int) -> None:
    run = answering(CommandResult(code))
    assert not resolve(["torch"], "3.12", run=run, environ=ENVIRON).decided  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "listed"),
    [
        (
            CommandResult(0, "numpy (1.26.4)\nAvailable versions: 1.26.4, 1.26.3\n  INSTALLED: 2.0\n"),
            ("1.26.4", "1.26.3"),
        ),
        (CommandResult(1, "ERROR: No matching distribution found for numpi\n"), ()),
        (CommandResult(127, "no such command"), ()),
    ],
)
def test_releases_of_the_index_are_listed(result: CommandResult, listed: tuple[str, ...]) -> None:
    asked = []

    def run(
        command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        asked.append((command[3:], (environment or {}).get("PIP_INDEX_URL")))
        return result

    environ = {**ENVIRON, "UV_DEFAULT_INDEX": "https://index.example/simple"}
    assert listed_releases("numpy", "3.10", run, environ) == listed
    ((command, index),) = asked
    line = f"tool run --python {sys.executable} pip index versions numpy --python-version 3.10 --only-binary :all:"
    assert (" ".join(command), index) == (line, "https://index.example/simple")


LOCK = """
[[packages]]
name = "a"
wheels = [{ url = "https://index.example/a-1%2Bcpu-py3-none-any.whl", size = 7, hashes = { sha256 = "aa" } }]
[[packages]]
name = "b"
sdist = { path = "/links/b-2.tar.gz", hashes = { sha256 = "bb" } }
"""


def test_files_have_name_place_size_and_hash() -> None:
    calls: list[list[str]] = []
    run = answering(CommandResult(0, LOCK), calls)
    files = index_files(["a", "b"], "3.12", ["--no-deps"], run=run, environ=ENVIRON)  # type: ignore[arg-type]
    assert files == (
        IndexFile("a-1+cpu-py3-none-any.whl", "https://index.example/a-1%2Bcpu-py3-none-any.whl", 7, "aa"),
        IndexFile("b-2.tar.gz", "file:///links/b-2.tar.gz", 0, "bb"),
    )
    assert "--no-deps" in calls[0]


def test_files_that_do_not_exist_are_an_error() -> None:
    run = answering(CommandResult(1, "", "error: No solution found"))
    with pytest.raises(MatrixError, match="the index has no such files"):
        index_files(["a"], "3.12", run=run, environ=ENVIRON)  # type: ignore[arg-type]


CONTENT = bytes(range(256)) * 20
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT; /cut ends early on the first request, /whole has no ranges, /private needs a password."""

    log: list[tuple[str, str | None]]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.log.append((self.path, asked))
        if self.path == "/absent" or (
            self.path == "/private" and self.headers["Authorization"] != "Basic bWU6c2VjcmV0"
        ):
            self.send_error(404)
            return
        start = int(asked[6:-1]) if asked and self.path != "/whole" else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        if self.command == "GET":
            cut = self.path == "/cut" and len(self.log) == 1
            self.wfile.write(CONTENT[start : start + 1000] if cut else CONTENT[start:])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Return the requests that the server has received."""
    requests: list[tuple[str, str | None]] = []
    monkeypatch.setattr(Handler, "log", requests, raising=False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setenv("no_proxy", "*")
    return requests


@pytest.fixture
def server(log: object) -> Iterator[str]:
    """Return the URL of a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def file(url: str, sha256: str = SHA256) -> IndexFile:
    return IndexFile("a.whl", url, len(CONTENT), sha256)


def test_file_arrives_once(server: str, log: list[object], tmp_path: Path) -> None:
    counted: list[int] = []
    for _ in range(2):
        assert Downloader({}, counted.append).fetch(file(f"{server}/a"), tmp_path).read_bytes() == CONTENT
    assert log == [("/a", None)]
    assert sum(counted) == len(CONTENT)


def test_interrupted_download_goes_on(server: str, log: list[object], tmp_path: Path) -> None:
    (tmp_path / "a.whl.partial").write_bytes(CONTENT[:700])
    assert Downloader({}).fetch(file(f"{server}/a"), tmp_path).read_bytes() == CONTENT
    assert log == [("/a", "bytes=700-")]
    assert [path.name for path in tmp_path.iterdir()] == ["a.whl"]


def test_connection_that_ends_early_is_resumed(server: str, log: list[object], tmp_path: Path) -> None:
    assert Downloader({}).fetch(file(f"{server}/cut"), tmp_path).read_bytes() == CONTENT
    assert log == [("/cut", None), ("/cut", "bytes=1000-")]


def test_server_without_ranges_starts_again(server: str, tmp_path: Path) -> None:
    (tmp_path / "a.whl.partial").write_bytes(CONTENT[:700])
    assert Downloader({}).fetch(file(f"{server}/whole"), tmp_path).read_bytes() == CONTENT


def test_download_that_was_complete_is_kept(server: str, tmp_path: Path) -> None:
    (tmp_path / "a.whl.partial").write_bytes(CONTENT)
    assert Downloader({}).fetch(file(f"{server}/a"), tmp_path).read_bytes() == CONTENT


def test_damaged_file_is_downloaded_again(server: str, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(CONTENT[::-1])
    assert Downloader({}).fetch(file(f"{server}/a"), tmp_path).read_bytes() == CONTENT


def test_other_content_is_refused_and_removed(server: str, tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="a download is damaged"):
        Downloader({}).fetch(file(f"{server}/a", "0" * 64), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_absent_file_is_an_error_without_password(server: str, log: list[object], tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="this file can't be downloaded") as raised:
        Downloader({}).fetch(file(f"{server}/absent".replace("://", "://me:secret@")), tmp_path)
    assert "secret" not in str(raised.value)


def test_missing_file_is_not_tried_again(server: str, log: list[object], tmp_path: Path) -> None:
    with pytest.raises(MatrixError):
        Downloader({}).fetch(file(f"{server}/absent"), tmp_path)
    assert len(log) == 1


def test_password_of_an_index_is_sent(server: str, tmp_path: Path) -> None:
    options = {"extra-index-url": f"{server}/simple".replace("://", "://me:secret@")}
    assert Downloader(options).fetch(file(f"{server}/private"), tmp_path).read_bytes() == CONTENT
    with pytest.raises(MatrixError):
        Downloader({}).fetch(file(f"{server}/private"), tmp_path / "..")


def test_size_is_that_of_the_server(server: str) -> None:
    assert Downloader({}).size(f"{server}/a") == len(CONTENT)
    with pytest.raises(MatrixError, match="this file can't be downloaded"):
        Downloader({}).size(f"{server}/absent")


def test_local_file_is_copied(tmp_path: Path) -> None:
    (tmp_path / "there.whl").write_bytes(CONTENT)
    url = (tmp_path / "there.whl").as_uri()
    assert Downloader({}).size(url) == len(CONTENT)
    assert Downloader({}).fetch(file(url), tmp_path).read_bytes() == CONTENT
