"""The JSON schema of failure.toml: what editors mark is what loading refuses."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from matrix.cli.main import main
from matrix.ground.catalog.folders import entries
from matrix.ground.catalog.schema import read_toml, toml_table
from matrix.prove.authoring.entry import entry_schema
from matrix.prove.provision.project import ROOT
from tests.schemas import validator

ENTRY = """
id = "my-failure"
title = ""
references = []
symptom = ""
cause = ""
fix = ""
[[signature]]
name = "one"
message = 'a b'
[[affected]]
mcore = ">=0.8"
transformers = ">=5"
reason = "read"
"""


def test_every_entry_is_valid() -> None:
    problems = {
        path.parent.name: [e.message for e in validator("toml/failure").iter_errors(read_toml(path))]
        for path in entries()
    }
    assert {name: found for name, found in problems.items() if found} == {}


def test_published_schema_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "export", "--schema"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "schema" / "toml" / "failure.json").read_text()
    jsonschema.Draft202012Validator.check_schema(entry_schema())


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("", "", None),
        ('title = ""', "title = 1", ["title"]),
        ('title = ""\n', "", []),
        ('title = ""', 'titel = ""', []),
        ('id = "my-failure"', 'id = "my failure"', ["id"]),
        ("message = 'a b'", "mesage = 'a b'", ["signature", 0]),
        ('mcore = ">=0.8"', "mcore = 0.8", ["affected", 0, "mcore"]),
        ("[[affected]]", '[[case]]\nname = "a"\nlevels = ["cpus"]\n[[affected]]', ["case", 0, "levels", 0]),
        (
            "[[affected]]",
            '[[case]]\nlevels = ["cpu"]\neach = [{ name = "a", rank = 2 }]\n[[affected]]',
            ["case", 0, "each", 0, "rank"],
        ),
    ],
)
def test_mistake_is_marked_at_its_place(old: str, new: str, path: list[Any] | None) -> None:
    table = toml_table(ENTRY.replace(old, new), "failure.toml")
    problems = [
        list(error.absolute_path) for error in jsonschema.Draft202012Validator(entry_schema()).iter_errors(table)
    ]
    assert problems[:1] == ([] if path is None else [path])


def test_editors_find_the_schema() -> None:
    rule = read_toml(ROOT / ".taplo.toml")["rule"][0]
    assert json.loads((ROOT / rule["schema"]["path"]).read_text())["title"] == "failure.toml of Megatrix"
