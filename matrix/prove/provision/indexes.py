"""The site's package indexes: pip's configuration as the environment variables that uv reads; how uv is started.

uv reads neither pip's files nor PIP_* variables. Without this module, uv would ignore a site that configures pip only,
and install other files than pip: a CUDA build of torch (several GB) from the public index, not the site's own build.

Sources: pip's `_internal/configuration.py` and `_internal/cli/parser.py` (which files, which wins); uv 0.13's
`--help` and runs of it (names, separators: UV_FIND_LINKS takes commas, UV_INDEX and UV_INSECURE_HOST spaces).
Not converted: options that restrict the choice of packages (constraint, no-binary, pre ...); uv's options differ.
"""

from __future__ import annotations

import configparser
import importlib
import importlib.util
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from matrix.ground.errors import MatrixError
from matrix.read.commands import CommandResult, Runner

# uv has no variable for --no-index. An empty index has the same effect; find-links still count.
NO_INDEX = "file:///nonexistent"

# Other variables of uv with the same meaning. If the user has set one, even to nothing, it wins.
OVERRIDES: dict[str, tuple[str, ...]] = {
    "UV_DEFAULT_INDEX": ("UV_INDEX_URL",),
    "UV_INDEX": ("UV_EXTRA_INDEX_URL",),
    "UV_HTTP_TIMEOUT": ("UV_REQUEST_TIMEOUT", "HTTP_TIMEOUT"),
    "SSL_CERT_FILE": ("SSL_CERT_DIR",),
    "ALL_PROXY": ("all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"),
}


def site_environment(environ: Mapping[str, str] = os.environ, prefix: Path = Path(sys.prefix)) -> dict[str, str]:
    """Return the variables that make uv use pip's indexes, and no settings but the user's or the machine's.

    Values may contain credentials: pass them to a process, never print them. Raises MatrixError for a file that pip
    could not read either.
    """
    return {**uv_settings(environ), **uv_environment(site_options(environ, prefix), environ, exists=Path.exists)}


def uv_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that names uv's settings: those of the user, else of the machine, else none.

    Without it, uv takes the uv.toml or pyproject.toml of any folder above its own: in a shared /tmp, anyone's.
    """
    if not environ.keys().isdisjoint(("UV_CONFIG_FILE", "UV_NO_CONFIG")):
        return {}
    user = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home(), ".config")
    machine = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    files = (Path(folder, "uv", "uv.toml") for folder in (user, *machine, "/etc"))
    file = next((file for file in files if file.is_file()), None)
    return {"UV_CONFIG_FILE": str(file)} if file else {"UV_NO_CONFIG": "1"}


def run_uv(
    words: Sequence[str],
    folder: Path,
    run: Runner,
    environ: Mapping[str, str] = os.environ,
    *,
    downloads: str = "never",
    seconds: float | None = None,
    excluded: Iterable[str] | None = None,
) -> CommandResult:
    """Run uv in a folder with the site's indexes. Raises MatrixError without uv.

    This project starts each uv by this function. Words of a command that needs a Python name it: uv would run one of
    any .venv above the folder. `downloads` states which Pythons it may download (UV_PYTHON_DOWNLOADS), `excluded` the
    packages that it leaves out, in place of those of $UV_EXCLUDE.
    """
    environment = {**environ, **site_environment(environ), "UV_PYTHON_DOWNLOADS": downloads}
    command = [*uv(environment), "--directory", str(folder), *words]
    if excluded is None:
        return run(command, environment=environment, seconds=seconds)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as names:
        names.write("\n".join(excluded))
        names.flush()
        return run([*command, "--excludes", names.name], environment=environment, seconds=seconds)


def uv_variable(environ: Mapping[str, str]) -> dict[str, str]:
    """Return UV, the path of uv: that of the variable, which uv itself sets, of PATH, or of this Python's package."""
    path = environ.get("UV") or shutil.which("uv", path=environ.get("PATH"))
    path = path or (importlib.import_module("uv").find_uv_bin() if importlib.util.find_spec("uv") else None)
    return {"UV": path} if path else {}


def uv(environ: Mapping[str, str]) -> list[str]:
    """Return the command that starts uv. Raises MatrixError without one."""
    if path := uv_variable(environ).get("UV"):
        return [path]
    raise MatrixError("uv is required", got="no uv on PATH", fix="pip install uv")


def pip_environment(environ: Mapping[str, str] = os.environ, prefix: Path = Path(sys.prefix)) -> dict[str, str]:
    """Return the variables that make pip use uv's indexes, where the site has configured uv."""
    of_site = site_environment(environ, prefix)
    of_uv = {**environ, **of_site}
    shared = {"INDEX_URL": "UV_DEFAULT_INDEX", "EXTRA_INDEX_URL": "UV_INDEX", "FIND_LINKS": "UV_FIND_LINKS"}
    given = {f"PIP_{name}": value.replace(",", " ") for name, uv in shared.items() if (value := of_uv.get(uv))}
    return {**of_site, **given, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def site_options(environ: Mapping[str, str] = os.environ, prefix: Path = Path(sys.prefix)) -> dict[str, str]:
    """Return the options of pip install from its files and PIP_*. Raises MatrixError as site_environment does."""
    return pip_options(read_files(pip_files(environ, prefix)), environ)


def pip_files(environ: Mapping[str, str], prefix: Path) -> tuple[Path, ...]:
    """Return the files that pip reads, lowest priority first: system, user, environment (`prefix`), PIP_CONFIG_FILE.

    As in pip, an existing PIP_CONFIG_FILE replaces the user's files, and the null device disables all.
    """
    file = environ.get("PIP_CONFIG_FILE")
    if file == os.devnull:
        return ()
    home = Path(environ.get("HOME") or Path.home())
    shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    system = [*(Path(folder, "pip") for folder in shared), Path("/etc")]
    user = [home / ".pip", Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "pip")]
    if file and Path(file).exists():
        user = []
    files = [folder / "pip.conf" for folder in (*system, *user, prefix)]
    return (*files, Path(file)) if file else tuple(files)


def read_files(files: Iterable[Path]) -> dict[tuple[str, str], str]:
    """Return (section, option) -> value of pip's INI files; later files win, missing files count as empty."""
    options: dict[tuple[str, str], str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            # The parser's own message quotes the line, which may contain a password.
            raise MatrixError(
                "pip's configuration cannot be read",
                where=str(file),
                got=f"{type(error).__name__}{f' in line {error.lineno}' if hasattr(error, 'lineno') else ''}",
                expected="an INI file in UTF-8, as `pip config list` reads it",
                fix="`pip config debug` shows the files; set PIP_CONFIG_FILE to use another file",
            ) from None
        for section in parser.sections():
            options.update(((section, option_name(name)), value) for name, value in parser.items(section))
    return options


def pip_options(files: Mapping[tuple[str, str], str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip install's options from [global], then [install], then PIP_*; the last value that is not empty wins."""
    variables = {option_name(name[4:]): value for name, value in environ.items() if name.startswith("PIP_")}
    layers = [{name: value for (section, name), value in files.items() if section == s} for s in ("global", "install")]
    return {name: value for layer in (*layers, variables) for name, value in layer.items() if value}


def option_name(name: str) -> str:
    """Return pip's spelling: `Index_URL`, `--index-url` and its other name, `pypi-url`, are all `index-url`."""
    name = name.lower().replace("_", "-").removeprefix("--")
    return {"pypi-url": "index-url", "default-timeout": "timeout"}.get(name, name)


def uv_environment(
    pip: Mapping[str, str], environ: Mapping[str, str], *, exists: Callable[[Path], bool]
) -> dict[str, str]:
    """Return the variables that make uv use pip's indexes, without those that `environ` already sets.

    pip treats all its indexes as one and takes the best version. uv stops at the first index that has the name, so
    a site mirror with numpy for one Python only would hide every other numpy. `unsafe-best-match` is uv's name for
    pip's rule. It is set only together with pip's own extra indexes.
    """
    extra = pip.get("extra-index-url", "").split()
    links = [place(link) for link in pip.get("find-links", "").split()]
    variables = {
        "UV_DEFAULT_INDEX": pip.get("index-url", ""),
        "UV_INDEX": " ".join(extra),
        # pip warns about a missing folder and continues; uv would fail.
        "UV_FIND_LINKS": ",".join(str(link) for link in links if isinstance(link, str) or exists(link)),
        "UV_INSECURE_HOST": " ".join(pip.get("trusted-host", "").split()),
        "UV_HTTP_TIMEOUT": whole_seconds(pip.get("timeout", "")),
        "SSL_CERT_FILE": pip.get("cert", ""),
        "SSL_CLIENT_CERT": pip.get("client-cert", ""),
        "ALL_PROXY": pip.get("proxy", ""),
    }
    if pip.get("no-index", "").lower() in ("1", "on", "t", "true", "y", "yes"):
        variables |= {"UV_DEFAULT_INDEX": NO_INDEX, "UV_INDEX": ""}
    variables = {
        name: value
        for name, value in variables.items()
        if value and environ.keys().isdisjoint((name, *OVERRIDES.get(name, ())))
    }
    if "UV_INDEX" in variables and "UV_INDEX_STRATEGY" not in environ:
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return variables


def place(link: str) -> str | Path:
    """Return a find-links entry as a URL, or as an absolute path: uv may run in another folder than pip."""
    if link.startswith("file:"):
        return Path(url2pathname(urlsplit(link).path))
    return link if "://" in link else Path(link).expanduser().absolute()


def whole_seconds(timeout: str) -> str:
    """Return pip's timeout (seconds, may be a fraction) as an integer for uv, rounded up; "" for no number."""
    try:
        return str(math.ceil(float(timeout)))
    except (ValueError, OverflowError):
        return ""


# An empty folder of that name stays in the layer; the name reveals nothing of this machine.
MOUNTS: Final = "/run/megatrix"
SECRETS: Final = "/run/secrets"
# Options for the origin and the download of packages; those that restrict the choice of packages are not passed on.
AS_IT_IS: Final = ("no-index", "trusted-host", "proxy", "timeout", "retries")
FILES: Final = ("cert", "client-cert")


@dataclass(frozen=True)
class PipInside:
    """pip's configuration file for the build (it may contain passwords), with the folders and files that it refers to.

    `folders` maps folders of this machine to their paths inside; `files` are secrets by their id.
    """

    text: str = ""
    folders: Mapping[Path, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


def pip_inside(options: Mapping[str, str], exists: Callable[[Path], bool] = Path.exists) -> PipInside:
    """Return the settings of a build for `options` (matrix.prove.provision.indexes.pip_options)."""
    folders: dict[Path, str] = {}

    def moved(link: str, index: bool) -> str | None:
        """Return the location inside of the build, None for a missing one, which pip would skip with a warning."""
        outside = place(link)
        if isinstance(outside, str):
            return link
        if not exists(outside):
            return None
        # An index may refer to files outside of its folder (../../files/x.whl); find-links may be a page in a folder.
        folder = outside.parent if index or outside.suffix in (".html", ".htm") else outside
        inside = folders.setdefault(folder, f"{MOUNTS}/{len(folders)}")
        path = f"{inside}/{outside.relative_to(folder)}".removesuffix("/.")
        return f"file://{path}" if index else path

    inside_options = {}
    for name in ("index-url", "extra-index-url", "find-links"):
        links = (moved(link, index=name != "find-links") for link in options.get(name, "").split())
        inside_options[name] = " ".join(filter(None, links))
    inside_options |= {name: options.get(name, "") for name in AS_IT_IS}
    files = {name: Path(options[name]).expanduser().absolute() for name in FILES if options.get(name)}
    inside_options |= {name: f"{SECRETS}/{name}" for name in files}
    lines = [f"{name} = {' '.join(value.split())}" for name, value in inside_options.items() if value]
    return PipInside("\n".join(["[global]", *lines, ""]) if lines else "", folders, files)
