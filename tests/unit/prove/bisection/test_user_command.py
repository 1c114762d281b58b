"""A command of the user's own as an entry: in memory, as TOML, as the draft of a failure."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Level, Signature
from matrix.ground.catalog.loading import read_failures
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.stack import TORCH
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.text import MASKED
from matrix.kit.command import Repeats
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.user_command import (
    OwnCommand,
    can_be_named,
    measured_rules,
    read_signatures,
    table_of,
    toml_of,
)
from tests.unit import catalogs
from tests.unit.prove.bisection.repositories import KNOWN, record_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SIGNATURE = Signature("learned", exception="KeyError", message="'loss'", exit_code=1)  # type: ignore[arg-type]
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN = WORDS | st.integers(-9, 9) | st.booleans() | st.lists(WORDS, max_size=3)
KEYS = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
TABLES = st.dictionaries(KEYS, PLAIN | st.dictionaries(KEYS, PLAIN, max_size=3), max_size=4)


@given(st.dictionaries(KEYS, PLAIN | TABLES | st.lists(TABLES, min_size=1, max_size=3), max_size=5))
def test_toml_is_read_back_as_it_was(content: dict[str, Any]) -> None:
    assert tomllib.loads(toml_of(content)) == content


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(MatrixError, match="not a text in UTF-8"):
        toml_of({"command": ["\udcff"]})


@pytest.mark.parametrize(
    "own",
    [
        OwnCommand(("python", "TODO.py"), Path("/tmp/TODO")),
        OwnCommand(("python", "-c", 'print("a\\n")\x7f'), Path("/tmp")),
        OwnCommand(("x",), Path("/tmp"), Level.GPU, 30),
        OwnCommand(("x",), Path("/tmp"), metric="time (.*)", repeats=Repeats(3, 3)),
    ],
)
@pytest.mark.parametrize("signatures", [(), (SIGNATURE,)])
def test_failure_in_memory_is_the_written_one(
    own: OwnCommand, signatures: tuple[Signature, ...], tmp_path: Path
) -> None:
    """Cells read the folder; the desk does not."""
    catalog, failure = own.add_to(KNOWN, signatures, tmp_path)
    assert not [*tmp_path.iterdir()]
    own.write(tmp_path, own.entry(signatures))

    assert (failure,) == read_failures(tmp_path)
    assert (catalog.failure(own.id), catalog.site) == (failure, (tmp_path,))
    assert own.written_signatures(tmp_path) == failure.signature == signatures
    assert own.add_to(catalog, signatures, tmp_path)[0].failures == catalog.failures


def test_id_depends_on_named_files(tmp_path: Path) -> None:
    own = OwnCommand(("python", "train.py"), tmp_path)
    before = own.id
    (tmp_path / "train.py").write_text("train()\n")
    with_file = own.id
    (tmp_path / "train.py").write_text("train(2)\n")

    assert len({before, with_file, own.id, replace(own, deadline=5).id}) == 4


HOSTILE = (
    "sh",
    "-c",
    "curl -H 'Authorization: Bearer hunter2hunter2' https://me:hunter2@host | run --password=hunter2",
    "--password",
    "hunter2 and 'hunter2'",
    "--url",
    "https://me:hunter2@host/x",
    "hunter3-hunter3",
    "job.sh",
    "data.bin",
)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnCommand:
    """Return a command with secrets, in its words and in the files that it names."""
    monkeypatch.setenv("MY_PASSWORD", "hunter3-hunter3")
    (tmp_path / "job.sh").write_text("export WANDB_API_KEY=hunter2\necho hunter3-hunter3\npython train.py\n")
    (tmp_path / "job.sh").chmod(0o555)
    (tmp_path / "data.bin").write_bytes(b"\0\xff https://me:hunter2@host")
    return OwnCommand(HOSTILE, tmp_path)


def test_a_draft_holds_no_secrets(hostile: OwnCommand, tmp_path: Path) -> None:
    shared = replace(hostile, command=hostile.shared)
    entry = hostile.write(tmp_path / "draft", shared.entry((SIGNATURE,)), draft=True)
    files = {path.name: path for path in entry.parent.rglob("*") if path.is_file()}
    assert set(files) == {"failure.toml", "reproduction.py", "job.sh"}
    assert not [name for name, path in files.items() if "hunter" in path.read_text()]
    assert "python train.py" in files["job.sh"].read_text()
    assert files["job.sh"].stat().st_mode & 0o777 == 0o555
    assert "hunter" not in hostile.line + str(hostile.attached)
    assert hostile.shared[3:] == (
        "--password",
        MASKED,
        "--url",
        f"https://{MASKED}@host/x",
        MASKED,
        "job.sh",
        "data.bin",
    )


def test_what_cells_run_is_unchanged_and_private(hostile: OwnCommand, tmp_path: Path) -> None:
    entry = hostile.write(tmp_path / "failures", hostile.entry(()))
    assert tuple(read_toml(entry)["case"][0]["arguments"]["command"]) == HOSTILE
    assert (entry.parent / "files" / "data.bin").read_bytes() == (tmp_path / "data.bin").read_bytes()
    assert entry.parent.stat().st_mode & 0o777 == 0o700


def test_command_without_secrets_is_shared_unchanged() -> None:
    words = ("python", "-c", "print('a b', \"c\")", "", "--key-file", "x")
    assert OwnCommand(words, Path("/tmp")).shared == words


def test_command_with_a_masked_quote_is_one_word() -> None:
    own = OwnCommand(("sh", "-c", "Cookie: 'hunter2"), Path("/tmp"))
    assert "hunter2" not in " ".join(own.shared)


def test_signature_files_hold_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "signature.toml"
    path.write_text(toml_of({"signature": [table_of(SIGNATURE)]}))
    assert read_signatures(path) == (SIGNATURE,)
    path.write_text(toml_of({**read_toml(path), "title": "x"}))
    with pytest.raises(MatrixError, match="not a file of signatures"):
        read_signatures(path)


def test_measured_cells_have_rules_and_picks() -> None:
    """Equal rules are written once, and a cell within a range has none of its own."""
    items = [catalogs.planned(KNOWN, f"torch-{torch}", "0.8.0") for torch in ("2.3.1", "2.4.0", "2.5.1")]
    results = (ProbeResult.GOOD, ProbeResult.BAD, ProbeResult.BAD)
    records = [record_of(item, Outcome(OutcomeKind.PASSED)) for item in items]
    cells = list(zip(records, results, strict=True))
    rules = measured_rules(KNOWN, [*cells, cells[0]], {})
    ranged = measured_rules(KNOWN, cells, {"affected": [{TORCH: ">=2.4.0,<=2.5.1"}]})

    assert [(rule["torch"], rule["mcore"]) for rule in rules["works"]] == [("==2.3.1", "==0.8.0")]
    assert [rule["torch"] for rule in rules["affected"]] == ["==2.4.0", "==2.5.1"]
    assert [pick["base"] for pick in rules["pick"]] == ["torch-2.3.1", "torch-2.4.0", "torch-2.5.1"]
    assert ranged["affected"] == [{TORCH: ">=2.4.0,<=2.5.1"}]
    assert measured_rules(KNOWN, [], {}) == {"affected": [], "works": [], "pick": []}


def test_package_without_a_name_is_left_out() -> None:
    assert can_be_named(KNOWN.cell("torch-2.4.0", {"numpy": "2.0.0"}, ["numpy"]))
    assert not can_be_named(KNOWN.cell("torch-2.4.0", {"ml-dtypes": "0.6.0"}, ["ml-dtypes"]))
