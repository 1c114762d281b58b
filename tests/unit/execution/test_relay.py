"""Records travel from the pytest processes to the one that shows them, and each side notices when the other is gone."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from matrix.errors import MatrixError
from matrix.execution.relay import CaseBegun, CaseEnded, Message, Receiver, Sender, decode, encode
from matrix.provision.project import ROOT
from matrix.verdicts.record import Record
from tests.unit.report.samples import MCORES, cell, record

RECORDS = [record(where=cell(mcore=mcore)) for mcore in MCORES]
HANG_S = 10.0  # only a bound against hanging


def nothing() -> None:
    """What an orphan would do."""


def test_every_record_arrives_once_and_as_it_was() -> None:
    shown: queue.Queue[Record] = queue.Queue()
    with Receiver(shown.put) as receiver:
        sender = Sender(receiver.address, nothing)
        for one in RECORDS:
            sender.send(one)
        got = [shown.get(timeout=HANG_S) for _ in RECORDS]
        sender.close()
    assert got == RECORDS
    assert shown.empty()


@pytest.mark.parametrize("message", [CaseBegun("a case"), CaseBegun("ended"), *map(CaseEnded, RECORDS[:2])])
def test_messages_travel_as_one_line(message: Message) -> None:
    line = encode(message)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert decode(line) == message


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"ended": {}}', '{"more": 1}', "1"])
def test_line_without_a_message_is_refused(line: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        decode(line)


def test_several_senders_are_shown_one_at_a_time() -> None:
    shown: list[Record] = []
    inside = threading.Semaphore(1)

    def show(one: Record) -> None:
        assert inside.acquire(blocking=False)
        shown.append(one)
        inside.release()

    with Receiver(show) as receiver:

        def send(one: Record) -> None:
            sender = Sender(receiver.address, nothing)
            sender.send(one)
            sender.close()

        threads = [threading.Thread(target=send, args=(one,)) for one in RECORDS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
    assert sorted(one.key for one in RECORDS) == sorted(one.key for one in shown)


def test_what_was_sent_before_hanging_up_is_shown_before_the_receiver_closes() -> None:
    shown: list[Record] = []
    with Receiver(shown.append) as receiver:
        sender = Sender(receiver.address, nothing)
        for one in RECORDS:
            sender.send(one)
        sender.close()
    assert len(RECORDS) == len(shown)


def test_an_address_that_is_empty_sends_nowhere() -> None:
    sender = Sender("", nothing)
    sender.send(RECORDS[0])
    sender.close()


def test_a_run_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="the run that this process belongs to is gone"):
        Sender(str(tmp_path / "records"), nothing)


def test_the_sender_is_orphaned_when_the_receiver_dies(tmp_path: Path) -> None:
    orphaned = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "records"))
        listening.listen()
        sender = Sender(str(tmp_path / "records"), orphaned.set)
        connection, _ = listening.accept()
        assert not orphaned.is_set()
        connection.close()
    assert orphaned.wait(HANG_S)
    sender.send(RECORDS[0])  # goes nowhere, and is not this process's business
    sender.close()


def test_hanging_up_orphans_nobody() -> None:
    orphaned = threading.Event()
    with Receiver(lambda _: None) as receiver:
        sender = Sender(receiver.address, orphaned.set)
        sender.close()
    assert not orphaned.wait(0.05)


def test_the_address_is_gone_with_the_receiver() -> None:
    with Receiver(lambda _: None) as receiver:
        address = Path(receiver.address)
        assert address.exists()
    assert not address.parent.exists()


def test_a_long_temporary_folder_does_no_harm(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    program = "from matrix.execution.relay import Receiver\nwith Receiver(print): pass"
    environment = {**os.environ, "TMPDIR": str(long), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL)
    assert ended.returncode == 0


def test_what_begins_is_told_before_its_record() -> None:
    told: queue.Queue[object] = queue.Queue()
    with Receiver(told.put, told.put) as receiver:
        sender = Sender(receiver.address, nothing)
        sender.begin("a case")
        sender.send(RECORDS[0])
        assert [told.get(timeout=HANG_S), told.get(timeout=HANG_S)] == ["a case", RECORDS[0]]
        sender.close()


def test_who_was_connected_and_hangs_up_is_told() -> None:
    left = threading.Event()
    with Receiver(lambda record: None, left=left.set) as receiver:
        sender = Sender(receiver.address, lambda: None)
        assert not left.is_set()
        sender.close()
        assert left.wait(10)


def test_who_is_killed_in_the_midst_of_a_message_has_left() -> None:
    left, shown = threading.Event(), list[Record]()
    with Receiver(shown.append, left=left.set) as receiver, socket.socket(socket.AF_UNIX) as sender:
        sender.connect(receiver.address)
        sender.sendall(b'{"begun": "a')
        sender.shutdown(socket.SHUT_RDWR)
        assert left.wait(10)
    assert shown == []
