"""The relay sends records to the process that shows them; each side detects the end of the other."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from matrix.ground.catalog.codec import MalformedError
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.record import Record
from matrix.prove.execution import relay
from matrix.prove.execution.relay import Message, Receiver, Sender, decode, encode
from matrix.prove.provision.project import ROOT
from tests.unit.show.samples import MCORES, cell, record

RECORDS = [record(where=cell(mcore=mcore)) for mcore in MCORES]
HANG_S = 10.0  # limit for hanging tests


def nothing() -> None:
    """Do nothing when orphaned."""


def test_each_record_arrives_once_and_unchanged() -> None:
    shown: queue.Queue[Record] = queue.Queue()
    with Receiver(shown.put) as receiver:
        sender = Sender(receiver.address, nothing)
        for one in RECORDS:
            sender.result(one)
        got = [shown.get(timeout=HANG_S) for _ in RECORDS]
        sender.close()
    assert got == RECORDS
    assert shown.empty()


@pytest.mark.parametrize("message", ["a case", "ended", *RECORDS[:2]])
def test_messages_round_trip_as_one_line(message: Message) -> None:
    line = encode(message)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert decode(line) == message


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"ended": {}}', '{"more": 1}', "1"])
def test_invalid_line_raises(line: str) -> None:
    with pytest.raises((MalformedError, KeyError, TypeError, ValueError)):
        decode(line)


def test_calls_of_several_senders_do_not_overlap() -> None:
    shown: list[Record] = []
    inside = threading.Semaphore(1)

    def show(one: Record) -> None:
        assert inside.acquire(blocking=False)
        shown.append(one)
        inside.release()

    with Receiver(show) as receiver:

        def send(one: Record) -> None:
            sender = Sender(receiver.address, nothing)
            sender.result(one)
            sender.close()

        threads = [threading.Thread(target=send, args=(one,)) for one in RECORDS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
    assert sorted(one.key for one in RECORDS) == sorted(one.key for one in shown)


def test_sent_records_are_shown_before_the_receiver_closes() -> None:
    shown: list[Record] = []
    with Receiver(shown.append) as receiver:
        sender = Sender(receiver.address, nothing)
        for one in RECORDS:
            sender.result(one)
        sender.close()
    assert len(RECORDS) == len(shown)


def test_empty_address_sends_nothing() -> None:
    sender = Sender("", nothing)
    sender.result(RECORDS[0])
    sender.close()


def test_sender_without_a_listener_raises(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="the run of this process has ended"):
        Sender(str(tmp_path / "records"), nothing)


def test_orphaned_is_called_when_the_receiver_dies(tmp_path: Path) -> None:
    orphaned = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "records"))
        listening.listen()
        sender = Sender(str(tmp_path / "records"), orphaned.set)
        connection, _ = listening.accept()
        assert not orphaned.is_set()
        connection.close()
    assert orphaned.wait(HANG_S)
    sender.result(RECORDS[0])  # is dropped without an error
    sender.close()


def test_sender_receives_the_secrets() -> None:
    """Those of the environment that started the run: tox lets few of its variables through."""
    with Receiver(lambda _: None, secrets=("hunter2-hunter2", "caf\udce9-hunter")) as receiver:
        sender = Sender(receiver.address, nothing)
        assert sender.secrets == ("hunter2-hunter2", "caf\udce9-hunter")
        sender.close()
    assert Sender("", nothing).secrets == ()


def test_secrets_are_by_default_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITLAB_TOKEN", "hunter2-hunter2")
    with Receiver(lambda _: None) as receiver:
        sender = Sender(receiver.address, nothing)
        assert "hunter2-hunter2" in sender.secrets
        sender.close()


def test_receiver_without_an_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "SECRETS_S", 0.01)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "records"))
        listening.listen()
        sender = Sender(str(tmp_path / "records"), nothing)
        with pytest.raises(MatrixError, match="does not answer"):
            _ = sender.secrets
        sender.close()


def test_close_does_not_call_orphaned() -> None:
    orphaned = threading.Event()
    with Receiver(lambda _: None) as receiver:
        sender = Sender(receiver.address, orphaned.set)
        sender.close()
    assert not orphaned.wait(0.05)


def test_address_is_removed_with_the_receiver() -> None:
    with Receiver(lambda _: None) as receiver:
        address = Path(receiver.address)
        assert address.exists()
    assert not address.parent.exists()


def test_long_temporary_folder_is_avoided(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    program = "from matrix.prove.execution.relay import Receiver\nwith Receiver(print): pass"
    environment = {**os.environ, "TMPDIR": str(long), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL)
    assert ended.returncode == 0


def test_begin_arrives_before_the_record() -> None:
    shown: queue.Queue[object] = queue.Queue()
    with Receiver(shown.put, shown.put) as receiver:
        sender = Sender(receiver.address, nothing)
        sender.started("a case")
        sender.result(RECORDS[0])
        assert [shown.get(timeout=HANG_S), shown.get(timeout=HANG_S)] == ["a case", RECORDS[0]]
        sender.close()


def test_left_is_called_when_a_sender_disconnects() -> None:
    left = threading.Event()
    with Receiver(lambda record: None, left=left.set) as receiver:
        sender = Sender(receiver.address, lambda: None)
        assert not left.is_set()
        sender.close()
        assert left.wait(10)


def test_left_is_called_after_an_incomplete_message() -> None:
    left, shown = threading.Event(), list[Record]()
    with Receiver(shown.append, left=left.set) as receiver, socket.socket(socket.AF_UNIX) as sender:
        sender.connect(receiver.address)
        sender.sendall(b'{"begun": "a')
        sender.shutdown(socket.SHUT_RDWR)
        assert left.wait(10)
    assert shown == []
