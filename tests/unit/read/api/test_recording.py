"""Surfaces and calls, written to files and read back."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from matrix.ground.catalog.regular_file import LARGEST
from matrix.ground.errors import MatrixError
from matrix.read.api import recording
from matrix.read.api.comparison import find
from matrix.read.api.recording import MCORE, TE
from tests.unit.read.api.sources import core, mcore, te

CALLS = mcore(
    """
    try:
        from transformer_engine.pytorch import get, gone
        HAVE = True
    except ImportError:
        HAVE = False
    from megatron.core.utils import is_te_min_version
    import transformer_engine as te
    import inspect
    def run(config, **kw):
        x = {"a": 1}
        if is_te_min_version("1.9") or not config.x:
            x["b"] = 2
        if HAVE and hasattr(te, "y") and len(inspect.signature(get).parameters) > 2:
            get(config.one, 2, *kw, **x)
        if "q" in inspect.signature(te.pytorch.get).parameters:
            return te.pytorch.get(q=1, **kw)
    """
)
SURFACE = te({"pytorch/__init__.py": "class A:\n    def f(self, x=1): ...", "pytorch/late.py": "y = 1"})


def test_written_file_is_read_back(tmp_path: Path) -> None:
    recording.write(CALLS, tmp_path / "calls.json.gz")
    recording.write(SURFACE, tmp_path / "te.json.gz")
    assert [*recording.read_calls(tmp_path / "calls.json.gz").uses] == [*CALLS.uses]
    read = recording.read_surface(tmp_path / "te.json.gz")
    assert (read.version, read.modules, read.dormant) == (SURFACE.version, SURFACE.modules, SURFACE.dormant)
    assert find(CALLS, read) == find(CALLS, SURFACE)


def test_equal_facts_give_equal_bytes(tmp_path: Path) -> None:
    recording.write(CALLS, tmp_path / "calls.json.gz")
    assert recording.encode(recording.read_calls(tmp_path / "calls.json.gz")) == recording.encode(CALLS)
    other_order = {"pytorch/late.py": "y = 1", "pytorch/__init__.py": "class A:\n    def f(self, x=1): ..."}
    assert recording.encode(te(other_order)) == recording.encode(SURFACE)


def test_truncated_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(recording.encode(SURFACE)[:-40])
    with pytest.raises(MatrixError, match="damaged or cut short"):
        recording.read_surface(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "can't be read|damaged"),
        (gzip.compress(b"not json", mtime=0), "damaged"),
        (gzip.compress(b"[1]", mtime=0), "not a surface of this format"),
        (gzip.compress(b"[" * 100_000, mtime=0), "damaged"),
        (gzip.compress(bytes(LARGEST + 1), mtime=0), "unpacks to more than"),
        (gzip.compress(json.dumps({"format": 99}).encode(), mtime=0), "not a surface of this format"),
    ],
)
def test_other_content_is_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "other.json.gz"
    path.write_bytes(content)
    with pytest.raises(MatrixError, match=message):
        recording.read_surface(path)


@pytest.mark.parametrize("change", [{"origin": None}, {"modules": []}, {"modules": {"a": 5}}])
def test_surface_of_another_form_is_rejected(tmp_path: Path, change: dict[str, object]) -> None:
    record = json.loads(gzip.decompress(recording.encode(SURFACE))) | change
    record = {name: value for name, value in record.items() if value is not None}
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(json.dumps(record).encode()))
    with pytest.raises(MatrixError, match=r"not a surface of this format|not a table"):
        recording.read_surface(tmp_path / "x.json.gz")


def test_calls_file_is_no_te_surface(tmp_path: Path) -> None:
    recording.write(CALLS, tmp_path / "calls.json.gz")
    with pytest.raises(MatrixError, match="another package") as error:
        recording.read_surface(tmp_path / "calls.json.gz")
    assert (error.value.got, error.value.expected) == ("consumer megatron-core", "package transformer-engine")


def test_api_of_megatron_core_is_no_calls_file(tmp_path: Path) -> None:
    recording.write(core({"a.py": "x = 1"}), tmp_path / "api.json.gz")
    with pytest.raises(MatrixError, match="another package"):
        recording.read_calls(tmp_path / "api.json.gz")


def test_equal_guards_are_written_once(tmp_path: Path) -> None:
    recording.write(CALLS, tmp_path / "calls.json.gz")
    record = recording.read_file(tmp_path / "calls.json.gz")
    rows = [tuple(row) for row in record["guards"]]
    assert len(set(rows)) == len(rows) > 5
    assert all(part < number for number, (_, *parts) in enumerate(rows, 1) for part in parts if isinstance(part, int))


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="can't be read"):
        recording.read_surface(tmp_path / "none.json.gz")


def test_unknown_version_is_rejected_with_the_nearest() -> None:
    with pytest.raises(
        MatrixError, match=r"no recorded transformer-engine.*\n.*1\.77.*\n.*\n.*fix: .*did you mean"
    ) as error:
        recording.load_surface("1.77")
    assert "surface record" in str(error.value)


@pytest.mark.parametrize(
    ("name", "version", "tag_or_commit"),
    [
        ("1.8", "1.8", "v1.8"),
        ("1.8.0+37280ec", "1.8.0+37280ec", "37280ec"),
        ("1.9.0+e79d915", "1.9.0+e79d915", "v1.9"),  # a build of the commit of a recorded tag
        ("1.5.0+6a9edc3", "1.5.0+6a9edc3", "v1.5"),
        ("v2.18", "2.18.0", "v2.18"),
    ],
)
def test_te_is_found_by_version_build_or_tag(name: str, version: str, tag_or_commit: str) -> None:
    found = recording.load_surface(name)
    assert Version(version) == Version(found.version)
    assert tag_or_commit in (found.origin.get("tag"), found.origin["commit"][:7])


@pytest.mark.parametrize("name", ["24.09-alpha.rc0", "c5a497a7eb", "0.9.0rc0+094d66b"])
def test_megatron_is_found_by_tag_commit_or_build(name: str) -> None:
    assert recording.load_calls(name).version.startswith("0.9.0rc0+")


def test_commit_of_digits_alone_is_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "folder", lambda: tmp_path)
    recorded = replace(SURFACE, origin={"commit": "1234567890abcdef", "tag": "v1.9"})
    recording.write(recorded, tmp_path / TE / "1.9.0.json.gz")
    for name in ("1234567", "v1.9", "1.9", "1.9.0+1234567"):
        assert recording.find_recorded(TE, name).name == "1.9.0.json.gz"
    for name in ("123456", "v1", "1.9.0+123456", "1.8.0+1234567"):
        with pytest.raises(MatrixError, match="no recorded"):
            recording.find_recorded(TE, name)


def test_build_of_another_commit_does_not_match() -> None:
    with pytest.raises(MatrixError, match="no recorded"):
        recording.load_surface("1.9.0+1234567")


def test_every_release_is_recorded() -> None:
    """TE 1.0 to the latest and core 0.5 to the latest: more than 1,100 pairs."""
    te_releases, cores = recording.released(TE), recording.released(MCORE)
    assert {"1.0.0", "1.2.1", "1.9.0.post1", "2.0.0", "2.2.1", "2.18.0", "2.19.0", "2.20.2"} <= set(te_releases)
    assert {"0.5.0", "0.9.0", "0.12.3", "0.18.1", "0.19.2"} <= set(cores)
    assert len(te_releases) * len(cores) > 1100


def test_the_recorded_data_stays_small() -> None:
    total = sum(path.stat().st_size for path in recording.folder().rglob("*.gz"))
    assert total < 2_150_000  # bytes


def test_no_source_text_is_recorded() -> None:
    """Conditions are shorter than 160 characters and have no line breaks."""
    record = recording.read_file(recording.recorded(MCORE)["0.19.0"])
    conditions = [text for kind, text, *_ in record["guards"] if kind in ("Config", "Unclear")]
    assert max(len(text.partition(" in _")[0]) for text in conditions) < 160  # a condition and its function
    assert not any("\n" in text for text in conditions)
