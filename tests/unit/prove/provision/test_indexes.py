from __future__ import annotations

import configparser
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix import PACKAGE
from matrix.ground.errors import MatrixError
from matrix.prove.provision.indexes import (
    NO_INDEX,
    OVERRIDES,
    PipInside,
    pip_files,
    pip_inside,
    pip_options,
    read_files,
    site_environment,
    uv_environment,
    uv_settings,
)
from matrix.prove.provision.overlays import install_wheels
from matrix.prove.provision.resolution import index_files, listed_releases, resolve
from matrix.read.commands import CommandResult, run

NOTHING: Mapping[str, str] = {}
MINOR = f"3.{sys.version_info[1]}"


def variables_for(
    pip: Mapping[str, str], environ: Mapping[str, str] = NOTHING, *, exists: bool = True
) -> dict[str, str]:
    return uv_environment(pip, environ, exists=lambda path: exists)


def test_files_are_read_weakest_first(tmp_path: Path) -> None:
    files = pip_files({"HOME": "/home/me"}, tmp_path)

    assert files == (
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        Path("/home/me/.pip/pip.conf"),
        Path("/home/me/.config/pip/pip.conf"),
        tmp_path / "pip.conf",
    )


def test_an_existing_config_file_replaces_the_users(tmp_path: Path) -> None:
    mine = tmp_path / "mine.conf"
    mine.touch()

    assert pip_files({"HOME": "/home/me", "PIP_CONFIG_FILE": str(mine)}, tmp_path) == (
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        tmp_path / "pip.conf",
        mine,
    )


def test_the_null_device_disables_all_files(tmp_path: Path) -> None:
    assert pip_files({"PIP_CONFIG_FILE": os.devnull}, tmp_path) == ()


def test_later_files_win_and_missing_ones_count_empty(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("[global]\nIndex_URL = a\ncert = c\n")
    second.write_text("[global]\nindex-url = b\n")

    assert read_files([first, tmp_path / "absent", second]) == {("global", "index-url"): "b", ("global", "cert"): "c"}


@pytest.mark.parametrize("text", ["https://me:secret@host\n", "[global]\na = b\nsecret\n", "[a]\n[a]\nsecret=\n"])
def test_a_broken_file_is_named_without_its_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(text)

    with pytest.raises(MatrixError) as caught:
        read_files([file])

    assert str(file) in str(caught.value)
    assert "secret" not in str(caught.value)


names = st.from_regex(r"[a-c]+(-[a-c]+)*", fullmatch=True)
values = st.text(st.characters(codec="ascii", exclude_characters="\r\n\v\f\x1c\x1d\x1e"), max_size=30).map(str.strip)


@given(st.dictionaries(names, values, max_size=5), st.dictionaries(names, values, max_size=5))
def test_files_written_by_configparser_are_read_back(shared: dict[str, str], install: dict[str, str]) -> None:
    written = configparser.RawConfigParser()
    written.read_dict({"global": shared, "install": install})

    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".conf") as file:
        written.write(file)
        file.flush()
        found = read_files([Path(file.name)])

    expected = {("global", name): value for name, value in shared.items()}
    assert found == expected | {("install", name): value for name, value in install.items()}


def test_install_overrides_global_and_variables_override_both() -> None:
    files = {
        ("global", "index-url"): "a",
        ("install", "index-url"): "b",
        ("global", "cert"): "c",
        ("global", "find-links"): "d",
        ("list", "cert"): "other command",
    }

    assert pip_options(files, {"PIP_FIND_LINKS": "e", "HOME": "/"}) == {
        "index-url": "b",
        "cert": "c",
        "find-links": "e",
    }


@pytest.mark.parametrize(
    ("variable", "option"),
    [("PIP_INDEX_URL", "index-url"), ("PIP_PYPI_URL", "index-url"), ("PIP_DEFAULT_TIMEOUT", "timeout")],
)
def test_pips_other_names_of_an_option_count(variable: str, option: str) -> None:
    assert pip_options({}, {variable: "x"}) == {option: "x"}


def test_an_empty_value_hides_no_other() -> None:
    assert pip_options({("global", "cert"): "c", ("install", "cert"): ""}, {"PIP_CERT": ""}) == {"cert": "c"}


@pytest.mark.parametrize(
    ("pip", "uv"),
    [
        ({"index-url": "https://a/simple"}, {"UV_DEFAULT_INDEX": "https://a/simple"}),
        ({"find-links": "/one https://two/x\n/three"}, {"UV_FIND_LINKS": "/one,https://two/x,/three"}),
        ({"find-links": "file:///with%20space"}, {"UV_FIND_LINKS": "/with space"}),
        ({"trusted-host": "a\nb:80"}, {"UV_INSECURE_HOST": "a b:80"}),
        ({"timeout": "180"}, {"UV_HTTP_TIMEOUT": "180"}),
        ({"timeout": "15.2"}, {"UV_HTTP_TIMEOUT": "16"}),
        ({"timeout": "soon"}, {}),
        ({"cert": "/ca.pem", "client-cert": "/me.pem"}, {"SSL_CERT_FILE": "/ca.pem", "SSL_CLIENT_CERT": "/me.pem"}),
        ({"proxy": "http://p:3128"}, {"ALL_PROXY": "http://p:3128"}),
        ({"quiet": "1", "constraint": "c.txt"}, {}),
    ],
)
def test_each_option_has_its_variable(pip: dict[str, str], uv: dict[str, str]) -> None:
    assert variables_for(pip) == uv


def test_extra_indexes_are_merged_as_pip_merges_them() -> None:
    assert variables_for({"extra-index-url": "file:///a https://b"}) == {
        "UV_INDEX": "file:///a https://b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_the_users_own_indexes_keep_uvs_rule() -> None:
    """With pip's rule a package could come from another index than uv's."""
    assert variables_for({"extra-index-url": "https://b"}, {"UV_EXTRA_INDEX_URL": "https://mine"}) == {}


def test_no_index_leaves_find_links_alone() -> None:
    pip = {"no-index": "yes", "index-url": "https://a", "extra-index-url": "https://b", "find-links": "/wheels"}

    assert variables_for(pip) == {"UV_DEFAULT_INDEX": NO_INDEX, "UV_FIND_LINKS": "/wheels"}


def test_missing_folders_are_left_out() -> None:
    assert variables_for({"find-links": "/gone https://two/x"}, exists=False) == {"UV_FIND_LINKS": "https://two/x"}


def test_relative_folders_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")

    assert variables_for({"find-links": "wheels ~/more"}) == {"UV_FIND_LINKS": f"{tmp_path}/wheels,/home/me/more"}


FULL = {
    "index-url": "https://a",
    "extra-index-url": "https://b",
    "find-links": "/w",
    "trusted-host": "h",
    "timeout": "9",
    "cert": "/c",
    "client-cert": "/d",
    "proxy": "http://p",
}


@given(
    st.sets(
        st.sampled_from(sorted({*variables_for(FULL), *(name for others in OVERRIDES.values() for name in others)}))
    )
)
def test_the_users_own_variables_are_kept(own: set[str]) -> None:
    """A variable that the user set under any of its names, even to nothing, is not converted; all others are."""
    converted = variables_for(FULL, dict.fromkeys(own, ""))

    for name in variables_for(FULL):
        overridden = own & {name, *OVERRIDES.get(name, ())}
        if name != "UV_INDEX_STRATEGY":
            assert (name in converted) == (not overridden)
    assert own.isdisjoint(converted)


def test_the_sites_files_and_variables_are_read(tmp_path: Path) -> None:
    config = tmp_path / ".config" / "pip"
    config.mkdir(parents=True)
    (config / "pip.conf").write_text(f"[global]\nextra-index-url = file:///a\nfind-links = {tmp_path}\n")
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path), "PIP_INDEX_URL": "https://a"}

    found = site_environment(environ, tmp_path)

    assert found["UV_INDEX"] == "file:///a"
    assert found["UV_FIND_LINKS"] == str(tmp_path)
    assert found["UV_DEFAULT_INDEX"] == "https://a"


def settings_for(**options: str) -> PipInside:
    """Return the settings for these options on a machine where only /gone is missing."""
    return pip_inside(
        {name.replace("_", "-"): value for name, value in options.items()}, lambda path: "gone" not in str(path)
    )


def test_without_a_configuration_there_are_no_settings() -> None:
    assert settings_for() == PipInside()


def test_folders_are_mounted_and_urls_kept() -> None:
    inside = settings_for(index_url="https://me:token@mirror/simple", find_links="/wheels\nhttps://mirror/flat")
    assert inside.folders == {Path("/wheels"): "/run/megatrix/0"}
    assert inside.text == (
        "[global]\nindex-url = https://me:token@mirror/simple\nfind-links = /run/megatrix/0 https://mirror/flat\n"
    )


def test_a_file_index_is_mounted_with_its_siblings() -> None:
    """Its pages refer to ../../files/x.whl."""
    inside = settings_for(extra_index_url="file:///mirror/simple file:///other/simple/")
    assert inside.folders == {Path("/mirror"): "/run/megatrix/0", Path("/other"): "/run/megatrix/1"}
    assert "extra-index-url = file:///run/megatrix/0/simple file:///run/megatrix/1/simple\n" in inside.text


def test_one_folder_is_mounted_once() -> None:
    inside = settings_for(index_url="file:///mirror/simple", find_links="file:///mirror/links.html file:///mirror")
    assert inside.folders == {Path("/mirror"): "/run/megatrix/0"}
    assert "find-links = /run/megatrix/0/links.html /run/megatrix/0\n" in inside.text


def test_missing_folders_are_not_mounted() -> None:
    inside = settings_for(find_links="/gone /wheels", index_url="file:///gone/simple")
    assert inside.text == "[global]\nfind-links = /run/megatrix/0\n"
    assert inside.folders == {Path("/wheels"): "/run/megatrix/0"}


def test_certificates_are_secrets() -> None:
    inside = settings_for(
        cert="/ca.pem", client_cert="/me.pem", timeout="180", retries="9", trusted_host="a\nb", no_index="1"
    )
    assert inside.files == {"cert": Path("/ca.pem"), "client-cert": Path("/me.pem")}
    assert set(inside.text.splitlines()[1:]) == {
        "cert = /run/secrets/cert",
        "client-cert = /run/secrets/client-cert",
        "timeout = 180",
        "retries = 9",
        "trusted-host = a b",
        "no-index = 1",
    }


def test_options_that_restrict_packages_are_dropped() -> None:
    assert settings_for(constraint="/c.txt", user="true", target="/x", pre="1") == PipInside()


EVIL = """\
import pathlib
pathlib.Path({ran!r}).touch()
"""


def wheel(folder: Path, version: str) -> None:
    """Write a wheel of the package `thing`."""
    folder.mkdir(exist_ok=True)
    info = f"thing-{version}.dist-info"
    with zipfile.ZipFile(folder / f"thing-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("thing.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder below one in which others left settings; TMPDIR and the current folder are below it, too."""
    settings = f'find-links = ["{tmp_path}/theirs"]\n'
    wheel(tmp_path / "site", "1.0")
    wheel(tmp_path / "theirs", "99.0")
    for folder in (tmp_path, tmp_path / "folder"):
        folder.mkdir(exist_ok=True)
        (folder / "uv.toml").write_text(settings)
        (folder / "pyproject.toml").write_text(f"[tool.uv]\n{settings}")
        (folder / "pip.conf").write_text(f"[global]\nfind-links = {tmp_path}/theirs\n")
        (folder / ".netrc").write_text("machine localhost login a password b\n")
        (folder / ".python-version").write_text("3.1\n")
        for name in ("sitecustomize.py", "usercustomize.py", "thing.py"):
            (folder / name).write_text(EVIL.format(ran=f"{tmp_path}/ran"))
        (folder / "evil.pth").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
        python = folder / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        (folder / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_", "VIRTUAL_ENV", "XDG_"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "TMPDIR", "UV_CACHE_DIR"):
        (tmp_path / "folder" / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / "folder" / name))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "mine.conf"))
    (tmp_path / "mine.conf").write_text(f"[global]\nno-index = true\nfind-links = {tmp_path}/site\n")
    monkeypatch.chdir(tmp_path / "folder")
    return tmp_path / "folder"


def installed_version(folder: Path) -> str:
    assert not install_wheels(["thing"], folder / "target", run).code
    return "thing 1.0" if (folder / "target" / "thing-1.0.dist-info").is_dir() else "another"


@pytest.mark.parametrize(
    "answer",
    [
        lambda folder: resolve(["thing"], MINOR).pins[0].replace("==", " "),
        lambda folder: " ".join(index_files(["thing"], MINOR)[0].name.split("-")[:2]),
        installed_version,
    ],
)
def test_settings_of_folders_above_are_ignored(shared: Path, answer: Callable[[Path], str]) -> None:
    (shared / "target").mkdir()
    assert answer(shared) == "thing 1.0"
    assert not (shared.parent / "ran").exists()


def test_every_command_of_uv_names_its_python(shared: Path) -> None:
    """uv runs a Python of a .venv above its folder where none is named; no settings count."""
    commands: list[Sequence[str]] = []

    def runner(command: Sequence[str], environment: Mapping[str, str] | None = None, **_: object) -> CommandResult:
        assert (environment or {})["UV_NO_CONFIG"] == "1"
        commands.append(command)
        return CommandResult(1)

    listed_releases("thing", MINOR, runner)
    resolve(["thing"], MINOR, runner)
    install_wheels(["thing"], shared, runner)
    assert all("--python" in command and "--directory" in command for command in commands)
    assert len(commands) == 3


def test_user_settings_of_uv_count(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "uv" / "uv.toml"
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}
    file.parent.mkdir(parents=True)
    assert uv_settings(environ)["UV_NO_CONFIG"] == "1"
    file.touch()
    assert uv_settings(environ) == {"UV_CONFIG_FILE": str(file)}
    assert uv_settings({**environ, "UV_CONFIG_FILE": "/site/uv.toml"}) == {}


def test_uv_is_started_by_one_function() -> None:
    texts = {path.name: path.read_text() for path in PACKAGE.rglob("*.py")}
    assert [name for name, text in texts.items() if re.search(r"\*uv\(", text)] == ["indexes.py"]
