"""Values of the environment that look like secrets never reach a log or a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from matrix.ground.catalog.codec import encode
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised, RankEnd
from matrix.ground.verdicts.text import MASKED, mask
from matrix.prove.execution.ranks.rank_process import Log
from matrix.prove.store import secrets
from matrix.prove.store.journal import Journal, read
from matrix.prove.store.secrets import LONGEST_LINE, Masker, mask_file, masked_outcome, values
from tests.profiles import tries
from tests.unit.ground.verdicts.secret_texts import FORMATTED, LINE, NAMED, PLAIN_VARIABLES, SECRET_VARIABLES
from tests.unit.show import samples

SECRET = "hunter2-hunter2"


def test_secrets_are_found_by_variable_name() -> None:
    environ = {
        "HF_TOKEN": "abcdefg1", "WANDB_API_KEY": "abcdefg2", "db_password": "abcdefg3", "SECRETS": "abcdefg4",
        "AWS_SECRET_ACCESS_KEY": "abcdefg5", "TOKENIZERS_PARALLELISM": "falsefalse", "KEYBOARD": "qwertyui",
        "PATH": "/usr/bin:/bin", "SSH_KEY_FILE": "/home/me/.ssh/id", "SHORT_TOKEN": "true",
    }  # fmt: skip
    assert {value for value in values(environ) if value.startswith("abcdefg")} == {f"abcdefg{n}" for n in range(1, 6)}
    assert not {"falsefalse", "qwertyui", "/home/me/.ssh/id", "true"} & set(values(environ))


@pytest.mark.parametrize("name", ["DB_PWD", "DB_PASS", "PASS", "GH_PAT", "NPM_AUTH", "BEARER", "AUTH_HEADER"])
def test_short_names_of_secrets_count(name: str) -> None:
    assert values({name: SECRET}) == (SECRET,)


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "COMPAT", "BYPASS", "PATH", "AUTHOR", "PATTERN", "XAUTHORITY"])
def test_names_that_only_look_alike_do_not_count(name: str) -> None:
    assert values({name: "cuda-12.4-runtime"}) == ()


@pytest.mark.parametrize("name", SECRET_VARIABLES)
def test_values_of_these_variables_are_secrets(name: str) -> None:
    assert values({name: SECRET}) == (SECRET,)


@pytest.mark.parametrize("name", PLAIN_VARIABLES)
def test_values_of_these_variables_are_none(name: str) -> None:
    assert values({name: "cuda-12.4-runtime"}) == ()


def test_password_in_a_url_may_hold_separators() -> None:
    """As pip and git take them, not encoded."""
    got = values({"DATABASE_URL": "postgresql://me:hunt/er@22@host:5432/db", "SENTRY_DSN": "https://0123456789@a/1"})
    assert set(got) == {"me:hunt/er@22", "hunt/er@22", "0123456789"}


def test_a_secret_may_start_with_a_slash(tmp_path: Path) -> None:
    """As one in 64 of base64 does; a path that exists is no secret, nor what a variable calls a file."""
    paths = {"SSH_AUTH_SOCK": "/tmp/agent.1", "SSL_KEY": str(tmp_path), "API_KEY_FILE": "/run/secrets/api"}
    assert values({"API_KEY": "/abcdef+1234", **paths}) == ("/abcdef+1234",)


def test_passwords_in_urls_are_secrets() -> None:
    """Of any variable: PIP_EXTRA_INDEX_URL has several URLs, and pip prints them decoded or not."""
    found = values({
        "PIP_EXTRA_INDEX_URL": "https://me:hunter2%40work@a.example/simple https://0123456789@b.example/simple",
        "UV_INDEX_URL": "https://c.example/simple",
        "HTTPS_PROXY": "http://u:pass@proxy:3128",
    })  # fmt: skip
    assert set(found) == {"me:hunter2%40work", "hunter2%40work", "me:hunter2@work", "hunter2@work", "0123456789"}


def test_a_url_in_a_log_keeps_its_host(tmp_path: Path) -> None:
    secrets = values({"PIP_INDEX_URL": "https://me:hunter22@host.example/simple"})
    log = Log(tmp_path / "log", secrets=secrets)
    log.write(b"Looking in indexes: https://me:hunter22@host.example/simple")
    log.close()
    assert log.path.read_bytes() == b"Looking in indexes: https://[masked]@host.example/simple"


@given(
    st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=4), min_size=1, max_size=3),
    st.binary().map(lambda raw: bytes(b"abc"[byte % 3] for byte in raw)),
    st.integers(1, 5),
)
@example(["aab", "ab"], b"aaab", 1)
def test_masking_does_not_depend_on_chunks(secrets: list[str], data: bytes, size: int) -> None:
    longest_first = sorted(secrets, key=len, reverse=True)
    masker = Masker(longest_first)
    out = b"".join(masker.take(data[place : place + size]) for place in range(0, len(data), size)) + masker.rest()

    unmasked = out.replace(MASKED.encode(), b"|")
    assert not any(secret.encode() in unmasked for secret in secrets)
    if not any(secret.encode() in data for secret in secrets):
        assert data == out


def test_a_log_holds_no_secret(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", secrets=(SECRET,))
    for chunk in (b"token: hunter2-", b"hunter2, and hunter2-", b"hunter"):
        log.write(chunk)
    log.close()

    assert log.path.read_bytes() == b"token: [masked], and hunter2-hunter"


def test_a_log_masks_what_looks_like_a_secret(tmp_path: Path) -> None:
    """In its head, where chunks end anywhere, and in its tail."""
    log = Log(tmp_path / "log", head=100, tail=300)
    for line in (b"https://me:hunt", b"er2@host/\n", b"Bearer hunter2hunter2\n", b"-" * 99 + b"\n") * 9:
        log.write(line)
    log.close()
    text = log.path.read_bytes()
    assert b"hunter2" not in text
    assert text.count(b"https://[masked]@host/\nBearer [masked]\n") >= 2


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_private_key_is_masked_across_chunks(tmp_path: Path, size: int) -> None:
    key = (
        f"env\nSSH_KEY=-----BEGIN RSA PRIVATE KEY-----\n{f'{LINE}xx' * 3}\n{LINE}\n-----END RSA PRIVATE KEY-----\nend\n"
    )
    log = Log(tmp_path / "log")
    for offset in range(0, len(key), size):
        log.write(key[offset : offset + size].encode())
    log.close()
    assert log.path.read_text() == "env\nSSH_KEY=[masked]\nend\n"


def test_key_cut_by_the_tail_is_masked(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", head=10, tail=120)
    body = "\n".join([LINE] * 9)
    log.write(f"x\n-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----\nend\n".encode())
    log.close()
    assert LINE not in log.path.read_text()
    assert log.path.read_text().endswith("[masked]\nend\n")


SECRET_TEXTS = [*NAMED, *(text for _, text, _ in FORMATTED), "a plain line", "", "\udcff"]


@tries(100)
@given(st.lists(st.sampled_from(SECRET_TEXTS), max_size=6).map("\n".join), st.integers(1, 60))
@example(FORMATTED[5][1], 1)  # a key whose end has no newline
def test_what_is_masked_does_not_depend_on_chunks(text: str, size: int) -> None:
    """A signature is learned from one run, and compared with another."""
    data = text.encode(errors="surrogateescape")
    outputs = set()
    for length in (1, size, max(len(data), 1)):
        masker = Masker((SECRET,))
        parts = [masker.take(data[offset : offset + length]) for offset in range(0, len(data), length)]
        outputs.add(b"".join(parts) + masker.rest())
    assert len(outputs) == 1


def test_endless_line_is_searched_in_parts() -> None:
    masker = Masker(())
    taken = [masker.take(b"x" * 1000) for _ in range(1000)]
    assert max(map(len, taken)) == LONGEST_LINE
    assert b"".join(taken) + masker.rest() == b"x" * 1_000_000


def test_only_what_a_log_keeps_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of output cost what its head and tail cost: each byte of these is searched twice at most."""
    searched: list[int] = []

    def counted(text: str) -> str:
        searched.append(len(text))
        return mask(text)

    monkeypatch.setattr(secrets, "mask", counted)
    log = Log(tmp_path / "log", head=2**16, tail=2**16)
    for _ in range(100):
        log.write(b"password=hunter2 and more\n" * 40_000)
    log.close()
    assert b"hunter2" not in log.path.read_bytes()
    assert sum(searched) < 2**21  # the chunk in which the head ends has 1 MB


def test_outcome_holds_no_secret_of_known_format() -> None:
    message = "no access to https://me:hunter2@host with Bearer hunter2hunter2"
    ranks = (RankEnd(0, 1, value={"url": [message], "metric": [1.5]}, stacks=message),)
    outcome = Outcome(OutcomeKind.RAISED, message, chain=(Raised("E", message),), evidence=message, ranks=ranks)
    text = json.dumps(encode(masked_outcome(outcome, ())))
    assert "hunter2" not in text
    assert '{"url": ["no access to https://[masked]@host with Bearer [masked]"], "metric": [1.5]}' in text


def test_secrets_of_the_run_are_added() -> None:
    assert values({"A_TOKEN": "abcdefg"}, given=("hunter2-hunter2",)) == ("hunter2-hunter2", "abcdefg")


def test_a_file_is_masked_in_place(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("pip --index-url https://me:hunter2@host\n")
    mask_file(tmp_path / "log")
    mask_file(tmp_path / "missing")
    assert (tmp_path / "log").read_text() == "pip --index-url https://[masked]@host\n"


def test_an_outcome_holds_no_secret() -> None:
    message = f"no access with {SECRET}"
    chain = (Raised("HTTPError", message),)
    ranks = (RankEnd(0, 1, chain=chain, value={"url": [message]}, stacks=message),)
    outcome = Outcome(OutcomeKind.RAISED, message, chain=chain, evidence=message, ranks=ranks, attempts=(message,))

    assert SECRET not in json.dumps(encode(masked_outcome(outcome, (SECRET,))))
    assert masked_outcome(outcome, ()) == outcome


def test_a_journal_holds_no_secret(tmp_path: Path) -> None:
    record = samples.record(outcome=Outcome(OutcomeKind.RAISED, f"no access with {SECRET}"), notes=(f"{SECRET}!",))
    with Journal(tmp_path / "journal-1.jsonl", secrets=(SECRET,)) as journal:
        journal.result(record)

    assert SECRET not in (tmp_path / "journal-1.jsonl").read_text()
    assert read(tmp_path).results[record.key].notes == (f"{MASKED}!",)


def test_kind_of_an_outcome_is_no_secret() -> None:
    outcome = Outcome(
        OutcomeKind.UNAVAILABLE, "unavailable", chain=(Raised("E", "", (Frame("/unavailable/a.py", 1, "f"),)),)
    )
    masked = masked_outcome(outcome, ("unavailable",))
    assert (masked.kind, masked.reason) == (OutcomeKind.UNAVAILABLE, MASKED)
    assert masked.chain[0].frames[0].file == f"/{MASKED}/a.py"


def test_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared is what was masked, also where a process still writes to the file."""
    log, opened = tmp_path / "log", list[str]()
    log.write_text("x\n")
    usual = Path.open

    def counted(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        opened.append(mode)
        return usual(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", counted)
    mask_file(log)
    assert opened == ["rb"]
