"""Dockerfiles."""

from __future__ import annotations

import pytest

from matrix.check.files.declared import Declared, UnreadKind
from matrix.check.files.dockerfile import read_dockerfile


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
