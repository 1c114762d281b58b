"""Dockerfiles."""

from __future__ import annotations

import pytest

from matrix.ask.check.files.declared import Declared, UnreadKind
from matrix.ask.check.files.dockerfile import read_dockerfile


def read(text: str, **files: str) -> Declared:
    return read_dockerfile(text, "Dockerfile", lambda name: (name, files[name]) if name in files else None)


NGC = """\
# syntax=docker/dockerfile:1
ARG TAG=24.07
FROM nvcr.io/nvidia/pytorch:${TAG}-py3 AS base
ENV NVTE_FRAMEWORK pytorch
ARG TE=v1.9
RUN --mount=type=cache,target=/var/cache/pip pip install --no-build-isolation \\
    # the release of the paper
    git+https://github.com/NVIDIA/TransformerEngine.git@${TE} && \\
    pip3 install "numpy<2"

FROM ubuntu:24.04 AS tools
RUN pip install torch==1.0

FROM base
RUN <<EOF
pip install megatron-core==0.8.0
EOF
CMD ["torchrun", "train.py", "--tp-comm-overlap"]
"""


def test_last_stage_has_its_image_and_packages() -> None:
    found = read(NGC)
    assert [one.reference for one in found.images] == ["nvcr.io/nvidia/pytorch:24.07-py3"]
    assert [(one.name, one.version, str(one.place)) for one in found.pins] == [
        ("transformer-engine", "1.9", "Dockerfile:6"),
        ("numpy", "", "Dockerfile:8"),
        ("megatron-core", "0.8.0", "Dockerfile:16"),
    ]
    assert [(one.words, dict(one.environ)) for one in found.commands] == [
        (("torchrun", "train.py", "--tp-comm-overlap"), {"NVTE_FRAMEWORK": "pytorch"})
    ]


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("FROM a:1", "a:1"),
        ("from --platform=linux/amd64 a:1 as b", "a:1"),
        ("ARG T\nFROM a:${T:-2}", "a:2"),
        ("FROM a:1\nFROM 0", "a:1"),
        ("FROM $UNKNOWN", "$UNKNOWN"),
    ],
)
def test_image_is_that_of_the_last_stage(text: str, image: str) -> None:
    assert [one.reference for one in read(text).images] == [image]


@pytest.mark.parametrize(
    "instructions",
    [
        "COPY requirements.txt /tmp/\nRUN pip install -r /tmp/requirements.txt",
        "COPY requirements.txt /tmp/r.txt\nRUN pip install -r /tmp/r.txt",
        "WORKDIR /app\nCOPY . .\nRUN pip install -r requirements.txt",
        "WORKDIR /app\nADD --chown=1 a.txt requirement*.txt ./\nRUN pip install -r /app/requirements.txt",
        "COPY . /src\nFROM 0\nWORKDIR /src\nRUN pip install -r ./requirements.txt",
        "RUN --mount=type=bind,source=requirements.txt,target=/tmp/r.txt pip install -r /tmp/r.txt",
    ],
)
def test_file_of_the_build_context_is_read(instructions: str) -> None:
    """The paths of the image are never read on this machine."""
    found = read(f"FROM a\n{instructions}", **{"requirements.txt": "torch==2.4.1"})
    assert [(one.name, one.version, str(one.place)) for one in found.pins] == [("torch", "2.4.1", "requirements.txt:1")]


@pytest.mark.parametrize(
    "instructions",
    ["RUN pip install -r requirements.txt", "COPY --from=0 . .\nRUN pip install -r requirements.txt",
     "COPY .. .\nRUN pip install -r requirements.txt", "COPY requirements.txt /tmp/\nRUN pip install -r /r.txt"],
)  # fmt: skip
def test_other_file_of_the_image_is_missing(instructions: str) -> None:
    found = read(f"FROM a\n{instructions}", **{"requirements.txt": "torch==2.4.1", "../requirements.txt": "x"})
    assert (found.pins, [item.kind for item in found.unread]) == ((), [UnreadKind.FILE])


def test_argument_of_the_build_is_no_environment() -> None:
    assert dict(read("FROM a\nARG A=1\nENV B=2 C=3\nRUN python x.py").commands[0].environ) == {"B": "2", "C": "3"}


@pytest.mark.parametrize("text", ["", "FROM", "RUN", "FROM a\nRUN <<EOF\npip install x", "CMD [", "ENV", "ARG", "\\"])
def test_damaged_file_is_read(text: str) -> None:
    read(text)


@pytest.mark.parametrize("instruction", ["COPY", "ADD", "COPY --chown=me:me"])
def test_json_form_names_copied_files(instruction: str) -> None:
    """The requirements were reported as missing, and the stack as one without a known break."""
    text = f'FROM some\n{instruction} ["req/base file.txt", "/app/r.txt"]\nRUN pip install -r /app/r.txt\n'
    files = {"req/base file.txt": "torch==2.4.1\n"}
    declared = read_dockerfile(text, "Dockerfile", lambda name: (name, files[name]) if name in files else None)
    assert ([(pin.name, pin.version) for pin in declared.pins], declared.unread) == ([("torch", "2.4.1")], ())


def declared(text: str, **files: str) -> Declared:
    names = {name.replace("_", "."): content for name, content in files.items()}
    return read_dockerfile(text, "D", lambda name: (name, names[name]) if name in names else None)


@pytest.mark.parametrize(
    "text",
    [
        'COPY ["r.txt", "/a/x.txt"]\nRUN pip install -r /a/x.txt',
        'WORKDIR /a\nADD ["r.txt", "."]\nRUN ["pip", "install", "-r", "r.txt"]',
        "RUN \\\n --mount=type=cache,target=/c \\\n --mount=type=bind,source=r.txt,dst=/r \\\n pip install -r /r",
        "COPY <<EOF /r.txt\ntorch==2.4.1\nEOF\nRUN pip install -r /r.txt",
        "COPY <<-A <<B /d/\n\ttorch==2.4.1\n\tA\nx\nB\nRUN pip install -r /d/A",
        'RUN <<"EOF" bash -ex\npip install torch==2.4.1\nEOF',
        "RUN <<EOF\npip install torch==2.4.1\nEOF",
        "RUN --mount=type=cache,target=/c <<EOF\npip install torch==2.4.1\nEOF",
        "COPY b.sh /\nRUN bash /b.sh",
        'COPY b.sh /\nENTRYPOINT ["/b.sh"]',
        "ONBUILD RUN pip install torch==2.4.1",
    ],
)
def test_forms_of_instructions(text: str) -> None:
    found = declared(f"FROM a\n{text}", r_txt="torch==2.4.1", b_sh="pip install torch==2.4.1")
    assert ([pin.version for pin in found.pins], found.unread) == (["2.4.1"], ())


@pytest.mark.parametrize(
    ("text", "pins"),
    [
        ("FROM a AS b\nCOPY r.txt /x.txt\nFROM c\nCOPY --from=b /x.txt /y.txt\nRUN pip install -r /y.txt", ["2.4.1"]),
        ("FROM a\nCOPY r.txt /x.txt\nFROM c\nCOPY --from=0 /x.txt .\nRUN pip install -r x.txt", ["2.4.1"]),
        (
            "FROM a AS b\nCOPY r.txt /\nFROM c\nRUN --mount=type=bind,from=b,dst=/b pip install -r /b/r.txt",
            ["2.4.1"],
        ),
        ("FROM a AS b\nRUN pip install torch==2.4.1\nFROM c\nCOPY --from=b /opt/venv /opt/venv", ["2.4.1"]),
        ("FROM a AS b\nRUN pip install torch==2.4.1\nFROM c\nCOPY --from=b /etc/x /etc/x", []),
        ("FROM a AS b\nARG V=2.4.1\nFROM b\nRUN pip install torch==${V}", ["2.4.1"]),
        ("ARG T=b\nFROM a AS b\nRUN pip install torch==2.4.1\nFROM ${T}", ["2.4.1"]),
    ],
)
def test_files_and_packages_of_stages(text: str, pins: list[str]) -> None:
    found = declared(text, r_txt="torch==2.4.1")
    assert ([pin.version for pin in found.pins], found.unread) == (pins, ())


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("INCLUDE x", "INCLUDE", 2),
        ("RUN pip install -r gone.txt", "gone.txt", 2),
        ("COPY --from=other/image /r.txt /\nRUN pip install -r /r.txt", "/r.txt", 3),
        ("RUN \\\n --mount=type=cache,target=/c \\\n bash /x.sh", "/x.sh", 4),
        ('RUN <<"EOF" bash -ex\ntrue\nbash /x.sh\nEOF', "/x.sh", 4),
        ('CMD ["bash", "run.sh"]', "run.sh", 2),
        ("COPY <<EOF /r.txt\n\n-r gone.txt\nEOF\nRUN pip install -r /r.txt", "gone.txt", 4),
    ],
)
def test_what_is_not_read_has_its_line(text: str, name: str, line: int) -> None:
    (unread,) = declared(f"FROM a\n{text}", r_txt="torch==2.4.1").unread
    assert (name in unread.text, unread.place.line) == (True, line)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ENTRYPOINT ["torchrun", "a.py"]\nCMD ["--x"]', [["torchrun", "a.py", "--x"]]),
        ('CMD ["--x"]\nENTRYPOINT ["torchrun", "a.py"]', [["torchrun", "a.py", "--x"]]),
        ('FROM a AS b\nCMD ["--x"]\nFROM b\nENTRYPOINT ["torchrun", "a.py"]', [["torchrun", "a.py"]]),
        ("CMD torchrun a.py\nCMD torchrun b.py", [["torchrun", "b.py"]]),
        ('ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]\nRUN true', []),
        ('FROM a AS b\nCMD ["torchrun", "a.py"]\nFROM b', [["torchrun", "a.py"]]),
    ],
)
def test_last_command_starts_the_image(text: str, words: list[list[str]]) -> None:
    assert [list(command.words) for command in declared(f"FROM a\n{text}").commands] == words


@pytest.mark.parametrize(
    ("where", "opened"),
    [
        ("Dockerfile", ["r.txt"]),
        ("docker/Dockerfile", ["r.txt", "../r.txt"]),
        ("a/docker/verl0.4/Dockerfile", ["r.txt", "../r.txt", "../../r.txt"]),
        ("a/b/Dockerfile", ["r.txt"]),
    ],
)
def test_context_is_above_a_folder_of_dockerfiles(where: str, opened: list[str]) -> None:
    names = []
    read_dockerfile("FROM a\nCOPY r.txt /\nRUN pip install -r /r.txt", where, lambda name: names.append(name))
    assert names == opened


@pytest.mark.parametrize(
    ("declaration", "version"), [("", ""), ("ARG V", "1"), ("ARG V=2", "2"), ("ARG V\nENV V=3", "3"), ("ARG W V", "1")]
)
def test_argument_before_from_is_declared_again(declaration: str, version: str) -> None:
    found = read(f"ARG V=1\nFROM a\n{declaration}\nRUN pip install torch==$V")
    assert [one.version for one in found.pins] == [version] * bool(version)


@pytest.mark.parametrize(
    "text",
    [
        "RUN <<EOF\n#!/usr/bin/env bash\npip install torch==2.4.1\nEOF",
        "RUN <<'EOF'\n#!/bin/sh -e\npip install torch==2.4.1\nEOF",
        "RUN\tpip install torch==2.4.1",
        "RUN pip install \\\n\n  torch==2.4.1",
    ],
)
def test_every_form_of_run_installs(text: str) -> None:
    found = read(f"FROM a\n{text}")
    assert ([one.version for one in found.pins], found.unread) == (["2.4.1"], ())


@pytest.mark.parametrize(("source", "copied"), [("/app", True), ("/", True), ("/app/.venv", True), ("/app/src", False)])
def test_environment_in_a_copied_folder_counts(source: str, copied: bool) -> None:
    lock = '[[package]]\nname = "torch"\nversion = "2.4.1"\n'
    text = f"FROM a AS b\nWORKDIR /app\nCOPY uv.lock .\nRUN uv sync\nFROM a\nCOPY --from=b {source} /x"
    assert len(read(text, **{"uv.lock": lock}).pins) == copied
