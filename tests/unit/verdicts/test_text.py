"""Log text is not trusted: it is made harmless, bounded and free of secrets."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.verdicts.text import LINE, MASKED, head, mask, one_line, tail, visible


@given(st.text(st.characters()))
def test_visible_keeps_only_newline_and_tab(text: str) -> None:
    assert all(char in "\n\t" or char.isprintable() for char in visible(text))


@given(st.text(st.characters()))
def test_visible_text_can_be_written_as_utf8(text: str) -> None:
    visible(text).encode("utf-8")


def test_printable_text_stays_as_it_is() -> None:
    text = "Loss: 1.5 ± 0.1\n\tnächste Zeile ✓ 日本"
    assert text == visible(text)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("10%\r100%\r\nend", "10%\n100%\nend"),
        ("a\u202eb", "a\\u202eb"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "caf\\xe9"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_terminal_control_sequences_are_written_out(raw: str, shown: str) -> None:
    assert shown == visible(raw)


@pytest.mark.parametrize(
    "line",
    [
        "HF_TOKEN=hunter2-secret",
        "export AWS_SECRET_ACCESS_KEY=hunter2-secret",
        "WANDB_API_KEY: hunter2-secret",
        "NGC_KEY=hunter2-secret",
        "{'password': 'hunter2-secret', 'user': 'me'}",
        '"client_secret" : "hunter2-secret and more"',
        "Authorization: Bearer hunter2-secret",
        "curl -H 'X-Auth: bearer hunter2-secret'",
        "GH_PAT=hunter2-secret",
        "MYSQL_PWD: hunter2-secret",
        "DB_PASS=hunter2-secret NPM_AUTH=hunter2-secret",
        "Cookie: a=b; session=hunter2-secret",
        "pip install --index-url https://me:hunter2-secret@example.org/simple",
        "https://hunter2-secret@example.org/repo.git",
        "curl --auth-token hunter2-secret https://example.org",
        "run --password=hunter2-secret",
        "cloning with ghp_hunter2secrethunter2secret",
        "nvapi-hunter2-secret-hunter2",
        "eyJhbGciOiJIUzI1NiJ9.eyJodW50ZXIyIjoi.hunter2-secret",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2-secret\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2-secret",
    ],
)
def test_the_value_of_a_secret_is_masked(line: str) -> None:
    masked = mask(line)
    assert "hunter2" not in masked
    assert MASKED in masked


@pytest.mark.parametrize(
    "line",
    [
        "num_tokens=4096 tokenizer=GPT2BPETokenizer vocab_size: 100",
        "KeyError: 'decoder.layers.self_attention.linear_proj._extra_state/shard_1_2'",
        "assert item.index.fqn not in md, key=WriteItem(index=1)",
        "a token is missing, a secret is kept, the password is unknown",
        "torchrun --nproc-per-node 2 --key-file x run.py",
        'File "/usr/lib/python3.10/site-packages/torch/distributed/checkpoint/utils.py", line 389',
    ],
)
def test_ordinary_log_lines_are_not_masked(line: str) -> None:
    assert line == mask(line)


def test_a_secret_with_a_colour_code_is_masked() -> None:
    assert "hunter2" not in tail("HF_TOKEN=hun\x1b[1mter2-secret")


def test_one_line_is_one_line_of_the_width() -> None:
    assert one_line("one\n\n  two three four", 10) == "one two..."


def test_tail_keeps_last_lines_and_counts_rest() -> None:
    text = "\n".join(f"line {n}" for n in range(1000))
    assert tail(text, 2).split("\n") == ["[... 998 lines left out]", "line 998", "line 999"]


def test_head_keeps_first_lines_and_counts_rest() -> None:
    text = "\n".join(f"line {n}" for n in range(1000))
    assert head(text, 2).split("\n") == ["line 0", "line 1", "[... 998 lines left out]"]


@pytest.mark.parametrize("unit", ["a", "a_", "token ", "password", "eyJ-", "://", "\x1b[", '"', "-", "secret=\t"])
def test_long_line_is_cut_in_linear_time(unit: str) -> None:
    """The time limit catches hangs: a pattern that backtracks would take minutes."""
    text = unit * (4_000_000 // len(unit))
    begun = time.monotonic()
    for shown in (tail(text), head(text), one_line(text)):
        assert len(shown) < 61 * (LINE + 40)
    assert time.monotonic() - begun < 20
