"""Clones in the cache: made from a local server, complete for the catalog, read when the server is gone."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.provision import clones, host
from matrix.prove.provision.clones import Fetched, age, fetch, local_url, note_of
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.read import package_source
from matrix.read.git import Repository
from tests.unit.prove.provision.makers import commit, git, make_clone

SAID: list[str] = []


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A repository; `alone` in its folder is a commit on no branch."""
    folder = make_clone(tmp_path / "upstream")
    git(folder, "checkout", "--quiet", "--detach", "main")
    (folder / "megatron/core/model.py").write_text("ALONE = True\n")
    (tmp_path / "alone").write_text(commit(folder, "Propose a change"))
    git(folder, "checkout", "--quiet", "main")
    (folder / "megatron/core/model.py").write_text("NEW = True\n")
    commit(folder, "Change the model")
    return folder


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    return tmp_path / "cache/sources/megatron-lm"


def fetched(upstream: Path | str, folder: Path, *revisions: str) -> Fetched:
    SAID.clear()
    return fetch(folder, str(upstream), revisions or ("core_v0.9.0", "feature/x@2"), SAID.append)


def contents(folder: Path, revision: str) -> dict[str, bytes]:
    with Repository(folder) as clone:
        return {path: clone.object(id)[1] for path, id in clone.files(revision, "megatron").items()}


def test_revisions_of_a_bundle_have_no_history(upstream: Path, cached: Path) -> None:
    """A tag and a commit on no branch; what is no tag is noted. A later bundle adds to it."""
    alone = (upstream.parent / "alone").read_text().strip()
    note = fetch(cached, str(upstream), ("core_v0.9.0", alone, "core_v9"), SAID.append, history=False)
    assert (set(note.revisions), note.missing) == ({"core_v0.9.0", alone}, ("core_v9",))
    assert contents(cached, "core_v0.9.0")["megatron/core/model.py"] == b"LAYERS = 2\n"
    assert contents(cached, alone)["megatron/core/model.py"] == b"ALONE = True\n"
    assert git(cached, "rev-list", "--count", "core_v0.9.0", alone).strip() == "2"
    assert git(cached, "branch").strip() == ""
    assert fetch(cached, str(upstream), ("main",), SAID.append).revisions == ("main",)
    assert contents(cached, "main")["megatron/core/model.py"] == b"NEW = True\n"


@pytest.mark.parametrize(("revisions", "needed"), [(("v1.9", "core_v0.9.0", "a" * 40), False), (("37280ec",), True)])
def test_part_of_an_id_needs_the_history(revisions: tuple[str, ...], needed: bool) -> None:
    assert clones.need_history(revisions) is needed


def test_a_fetched_clone_needs_no_server(upstream: Path, cached: Path) -> None:
    fetched(upstream, cached)
    shutil.rmtree(upstream)

    source = package_source.parse(f"{cached}@core_v0.9.0", "megatron-core")
    overlay = Overlays(cached.parents[1]).provide(OverlaySpec((source,), "3.10", {}))

    assert (overlay.path / "megatron/core/model.py").read_text() == "LAYERS = 2\n"
    assert contents(cached, "feature/x@2")["megatron/core/model.py"] == b"LAYERS = 3\n"


def test_a_clone_has_every_commit(upstream: Path, cached: Path) -> None:
    """A bisection reads any of them."""
    fetched(upstream, cached)
    assert contents(cached, "main")["megatron/core/model.py"] == b"NEW = True\n"
    with Repository(cached) as clone:
        assert len(clone.history("%H%x00", "main")) == 2


def test_a_second_fetch_updates(upstream: Path, cached: Path) -> None:
    first = fetched(upstream, cached, "core_v0.9.0")
    (upstream / "megatron/core/model.py").write_text("NEWER = True\n")
    commit(upstream, "Change it again")
    git(upstream, "tag", "core_v0.10.0")
    git(upstream, "tag", "--force", "core_v0.9.0", "main")
    git(upstream, "branch", "-D", "feature/x@2")

    second = fetched(upstream, cached, "core_v0.9.0", "core_v0.10.0")

    assert (first.revisions, second.revisions) == (("core_v0.9.0",), ("core_v0.10.0", "core_v0.9.0"))
    assert contents(cached, "core_v0.10.0")["megatron/core/model.py"] == b"NEWER = True\n"
    assert contents(cached, "core_v0.9.0") == contents(cached, "core_v0.10.0")
    with Repository(cached) as clone:
        assert sorted(clone.refs()) == ["core_v0.10.0", "core_v0.9.0", "main"]


def test_nothing_is_fetched_twice(upstream: Path, cached: Path) -> None:
    fetched(upstream, cached)
    packs = sorted(cached.glob("objects/**/*"))
    fetched(upstream, cached)
    assert sorted(cached.glob("objects/**/*")) == packs


def test_a_commit_on_no_branch_is_fetched(upstream: Path, cached: Path, tmp_path: Path) -> None:
    alone = (tmp_path / "alone").read_text()
    assert fetched(upstream, cached, alone).revisions == (alone,)
    assert contents(cached, alone)["megatron/core/model.py"] == b"ALONE = True\n"


@pytest.mark.parametrize("revision", ["core_v9.9.9", "1" * 40])
def test_a_missing_revision_is_noted(upstream: Path, cached: Path, revision: str) -> None:
    """A mirror may be older than the catalog: the other cases still gain."""
    found = fetched(upstream, cached, "core_v0.9.0", revision)
    assert (found.revisions, found.missing) == (("core_v0.9.0",), (revision,))
    assert note_of(cached) == found


@pytest.fixture
def server(upstream: Path) -> Iterator[str]:
    """The repository as files of an HTTP server on this machine."""
    git(upstream, "update-server-info")
    handler = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(upstream / ".git"))) as http:
        threading.Thread(target=http.serve_forever).start()
        yield f"http://user:hunter22@127.0.0.1:{http.server_port}/"
        http.shutdown()


def test_a_mirror_over_http_is_fetched(server: str, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    fetched(server, cached)
    assert contents(cached, "core_v0.9.0")["megatron/core/model.py"] == b"LAYERS = 2\n"


def test_a_password_of_the_url_is_not_stored(server: str, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    found = fetched(server, cached)
    stored = [path.read_bytes() for path in cached.rglob("*") if path.is_file()]
    assert not any(b"hunter22" in text for text in (*stored, str(found).encode(), *map(str.encode, SAID)))


def test_an_unreachable_server_is_said_with_a_fix(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        with pytest.raises(MatrixError, match=r"\*\*\*@(.|\n)*can't be fetched(.|\n)*URL of a mirror") as raised:
            fetched(f"http://me:hunter22@127.0.0.1:{taken.getsockname()[1]}/x.git", cached)
    assert "hunter22" not in str(raised.value)
    assert not cached.exists()


def test_a_silent_server_is_given_up(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and never answers; git's transport, a child process, ends too."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("MEGATRIX_CONNECT_TIMEOUT", "0.3")
    silent = socket.create_server(("127.0.0.1", 0))

    def read() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = silent.accept()
                with connection:
                    while connection.recv(4096):  # until git's side is closed
                        pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with pytest.raises(MatrixError, match="no result within"):
        fetched(f"http://127.0.0.1:{silent.getsockname()[1]}/x.git", cached)
    silent.shutdown(socket.SHUT_RDWR)
    reader.join(60)
    silent.close()
    assert not reader.is_alive()
    assert [path.name for path in cached.parent.iterdir()] == ["megatron-lm.lock"]


def test_an_interrupted_fetch_leaves_nothing(upstream: Path, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("matrix.prove.provision.clones.asdict", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetched(upstream, cached)
    assert [path.name for path in cached.parent.iterdir()] == ["megatron-lm.lock"]


def test_git_ends_with_a_killed_fetch(cached: Path, tmp_path: Path) -> None:
    """kill -9 of the fetch: a large transfer would go on for minutes, into a folder that nobody uses."""
    tool = tmp_path / "bin/git"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho $$ >&4\nexec sleep 600\n")
    tool.chmod(0o755)
    reader, writer = os.pipe()
    code = f"""
import os, subprocess
from functools import partial
from pathlib import Path
from matrix.prove.provision import clones
os.dup2({writer}, 4)
subprocess.Popen = partial(subprocess.Popen, pass_fds=(4,))
clones.fetch(Path({str(cached)!r}), "https://localhost", (), len)
"""
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PATH": path}, pass_fds=(writer,)) as run:
        os.close(writer)
        with os.fdopen(reader) as started:
            child = os.pidfd_open(int(started.readline()))
        run.kill()
    try:
        assert select.select([child], [], [], 20)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)


def test_remains_of_a_killed_fetch_are_removed(upstream: Path, cached: Path) -> None:
    dead = cached.with_name("megatron-lm.abc.making")
    dead.mkdir(parents=True)
    fetched(upstream, cached)
    assert not dead.exists()


def test_a_failed_update_keeps_the_clone(upstream: Path, cached: Path, tmp_path: Path) -> None:
    before = fetched(upstream, cached)
    with pytest.raises(MatrixError, match="can't be fetched"):
        fetched(f"file://{tmp_path}/nothing", cached)
    assert note_of(cached) == before
    assert contents(cached, "core_v0.9.0")


@pytest.mark.parametrize("url", ["ext::sh -c touch% /tmp/x", "--upload-pack=touch", "-x"])
def test_a_command_is_no_url(url: str, cached: Path) -> None:
    with pytest.raises(MatrixError, match="not a repository's URL"):
        fetched(url, cached)


def test_a_folder_is_fetched_like_a_server(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    assert local_url(str(tmp_path / "a b")) == f"file://{tmp_path}/a%20b"
    assert local_url("git@host:x/y.git") == "git@host:x/y.git"


def test_variables_of_another_repository_are_ignored(
    upstream: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_WORK_TREE", "/nonexistent")
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", "/nonexistent")
    assert fetched(upstream, cached).revisions == ("core_v0.9.0", "feature/x@2")


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf"])
def test_a_wrong_timeout_is_refused(text: str) -> None:
    with pytest.raises(MatrixError, match="not a time"):
        clones.connect_s({"MEGATRIX_CONNECT_TIMEOUT": text})


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "less than a minute"), (60, "1 minute"), (7300, "2 hours"), (200_000, "2 days")]
)
def test_an_age_has_one_unit(seconds: int, expected: str) -> None:
    assert age("1970-01-01T00:00:00+00:00", now=seconds) == expected


def test_cases_find_a_fetched_clone(cached: Path, tmp_path: Path) -> None:
    cached.mkdir(parents=True)
    environ = {"MEGATRIX_CACHE": str(tmp_path / "cache")}
    assert host.load_configuration(environ, tmp_path).sources == {"megatron-lm": str(cached)}
    (tmp_path / "megatrix.toml").write_text('[sources]\nmegatron-lm = "/file"\n')
    assert host.load_configuration(environ, tmp_path).sources == {"megatron-lm": "/file"}
    given = {**environ, "MEGATRIX_MEGATRON_LM": "/env"}
    assert host.load_configuration(given, tmp_path).sources == {"megatron-lm": "/env"}


def test_urls_come_from_the_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "megatrix.toml").write_text(
        '[upstreams]\nmegatron-lm = "file:///a"\ntransformer-engine = "file:///b"\n'
    )
    environ = {"MEGATRIX_TRANSFORMER_ENGINE_URL": "file:///c"}
    assert host.load_configuration(environ, tmp_path).upstreams == {
        "megatron-lm": "file:///a", "transformer-engine": "file:///c",
    }  # fmt: skip
    assert host.load_configuration({}, tmp_path / "x").upstreams["megatron-lm"].endswith("/NVIDIA/Megatron-LM.git")
