"""Hostile inputs of every command: files, trees, clones, wheels and arguments, as strategies of hypothesis.

An input starts from a valid sample and is changed: fragments that broke parsers are inserted, bytes are removed,
repeated and replaced, or the whole file is replaced by a FIFO, a device, a folder, a loop or an endless file.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st

from matrix.cli.usage import described
from matrix.ground.errors import ExitStatus
from matrix.read.api.recording import FORMAT

DEEP: Final = 20_000  # brackets: more than any parser's stack
PROGRAM: Final = b"$(touch EXECUTED)"  # what a file starts that is run instead of read
# What broke parsers, ours or others': nesting, long numbers, controls, encodings, expansions, includes of itself.
FRAGMENTS: Final = (
    *(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xc3(", b"\r", b"\x1b]0;title\x07", b"\x0b\x0c\x85", "\u2028".encode()),
    *(
        b"[" * DEEP,
        b"{" * DEEP,
        b"(" * DEEP,
        b"a=(" * DEEP,
        b'{"a":' * DEEP,
        b"- " * DEEP,
        b"not " * 5_000,
        b"a." * DEEP,
    ),
    *(b"9" * 5_000, b"-1", b"1e999", b"nan", b"inf", b"0x" + b"f" * 5_000, b"1.0.0.dev0+a.b", b"!" * 200, b"*", b""),
    *(PROGRAM, b"`touch EXECUTED`", b"!!python/object/apply:os.system [touch EXECUTED]", b"; touch EXECUTED\n"),
    *(
        b"${A:-" * 500,
        b"$A$A",
        b"A=$A$A\n" * 60,
        b"<<EOF\n",
        b"'",
        b'"',
        b"\\",
        b"\\\n",
        b"\n\n\n",
        b"\t",
        b"# ",
        b"%s%n",
    ),
    *(
        b"&a [*a]",
        b"*a",
        b"<<: *a",
        b"-r file\n",
        b"FROM x\n" * 300,
        b"COPY . /\n",
        b"ARG A=$A\n" * 300,
        b"source file\n",
    ),
    *(
        b"../../etc/passwd",
        b"/dev/zero",
        b"https://user:word@host/",
        b"git+https://host/a.git@v1",
        b"file:///etc/passwd",
    ),
)
TEXTS: Final = tuple(part.decode("utf-8", "surrogateescape") for part in FRAGMENTS if b"\0" not in part)


@dataclass(frozen=True)
class Hostile:
    """One input: its kind, the files by path, and the arguments of the command.

    A file's content is bytes or one of SPECIAL. `{folder}` in an argument is the folder of the files. `git` commits the
    files of the folder `clone` first. `statuses` are the right ones, () for all that the command documents.
    """

    kind: str
    files: Mapping[str, bytes | str]
    words: tuple[str, ...]
    statuses: tuple[int, ...] = ()
    git: bool = False

    @property
    def right(self) -> tuple[int, ...]:
        """Return the statuses that are right."""
        command = described(self.words[0])
        started = (126, 127) if "--" in self.words else ()
        documented = (ExitStatus.BAD if command.bad else 0, ExitStatus.NOTHING if command.nothing else 0, *started)
        return self.statuses or (ExitStatus.GOOD, ExitStatus.MISTAKE, *documented)


SPECIAL: Final = ("fifo", "folder", "loop", "zero", "kernel", "huge", "missing", "unreadable-name")

REQUIREMENTS: Final = (
    b"torch==2.4.1\nmegatron-core==0.8.0 ; python_version >= '3.8'\n-r more.txt\n-e git+https://h/a.git@v1.2#egg=a\n",
    b"--index-url https://host/simple\ntransformer-engine[pytorch]>=1.9,<2 --hash=sha256:aa\nnumpy~=1.26 # why\n",
)
TOML: Final = (
    b'version = 1\n[[package]]\nname = "torch"\nversion = "2.4.1"\nmarker = "sys_platform == \'linux\'"\n',
    b'[project]\nname = "x"\ndependencies = ["torch==2.4.1"]\n[project.optional-dependencies]\na = ["megatron-core"]\n',
    b'lock-version = "1.0"\n[[packages]]\nname = "megatron-core"\nversion = "0.8.0"\n',
)
YAML: Final = (
    b"name: x\ndependencies:\n  - python=3.10\n  - pytorch=2.4.1\n  - pip:\n      - megatron-core==0.8.0\n",
    b"model:\n  seq_length: 8\n  tp_comm_overlap: true\n"
    b"defaults:\n  - file\n  - a: b\ntrainer: &t {devices: 8}\nb: *t\n",
    b"apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: nvcr.io/nvidia/pytorch:24.05-py3\n"
    b"    command: [bash, -c, 'x']\n",
)
DOCKERFILES: Final = (
    b"ARG TAG=24.05\nFROM nvcr.io/nvidia/pytorch:${TAG}-py3 AS a\nENV X=1 Y=$X\n"
    b"RUN pip install torch==2.4.1 && \\\n  a\n",
    b'FROM a\nCOPY --from=a /x /y\nCOPY file /f\nRUN ["sh", "-c", "pip install -r /f"]\n'
    b"RUN <<EOF\npip install torch==2\nEOF\n",
)
SCRIPTS: Final = (
    b"#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=8\nA=(--tp 2 ${B:-x})\n"
    b"if true; then\n torchrun pretrain_gpt.py ${A[@]}\nfi\n",
    b"#!/bin/sh\nset -e\npip install megatron-core==0.8.0\nsource file\n"
    b"srun --container-image=a#b bash -c \"python x.py --a '1'\"\n",
)
JSON: Final = (
    b'{"_meta": {}, "default": {"torch": {"version": "==2.4.1"}, "a": {"git": "https://h/a", "ref": "v1"}}}',
    b'{"default": {"megatron-core": {"version": "==0.8.0", "markers": "python_version > \'3\'"}}, "develop": {}}',
)
LOGS: Final = (
    b'[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line 1, in f\n[rank0]:     x()\n'
    b"[rank0]: AssertionError: rank 0\nFailed: Signal: Aborted (6)\n",
    b"2024-01-01 00:00:00,000 ERROR \x1b[31mtorch.OutOfMemoryError: CUDA out of memory.\x1b[0m\n" * 3,
)
PACKED_LOGS: Final = (*LOGS, gzip.compress(LOGS[0], mtime=0))
SOURCES: Final = (
    b"import transformer_engine.pytorch as te\nfrom transformer_engine.pytorch import Linear\n"
    b"def f(x, **k):\n    if hasattr(te, 'a') and x:\n        return te.Linear(1, 2, **k)\n    return Linear(x)\n"
    b"class A(te.Linear):\n    def forward(self, x): return super().forward(x)\n",
    b"try:\n    from megatron.core import mpu, transformer_engine\nexcept ImportError:\n    mpu = None\n"
    b"for name in ('a', 'b'):\n    x = getattr(mpu, name, None)\nmpu.get(1, *x, k=2)\n",
)
# Python that is valid and nested, wide or long.
REPEATED: Final = (
    *("x = " + "+".join(["te.a"] * 4_000), "x = " + " and ".join(["te.a"] * 20_000), "x = te" + ".a" * 4_000),
    *(
        "x = te" + "[0]" * 4_000,
        "x = te" + "()" * 4_000,
        "x = " + "-" * 4_000 + "te.a",
        "x = " + "lambda: " * 4_000 + "1",
    ),
    *(
        "x = " + "te.a if x else " * 3_000 + "1",
        "x = [" * 5_000,
        "x = [" + "te.a," * 2_000 + "]",
        "x = '''" + "a\n" * 9_000,
    ),
    *("if te.a == 0: pass\n" + "elif te.a == 1: pass\n" * 3_000, "if te.a: x = te.b\n" * 200, "assert te.a\n" * 200),
    *("".join(" " * n + f"if te.a{n}:\n" for n in range(90)) + " " * 90 + "te.x()", "x = te.a(\n" * 150 + ")" * 150),
    *("".join(f"def f{n}(x):\n return f{n + 1}(x) if te.a else {n}\n" for n in range(1_500)) + "f0(1)",),
    *(
        "".join(f"class A{n + 1}(A{n}): pass\n" for n in range(1_500)) + "A1500()",
        "def f(): te.a(f(f(f(te.b()))))\nf()",
    ),
)
VERSIONS: Final = ("0.8.0", "9" * 5_000, "1!2.3", "0.8.0rc1", "", "x", "..", "0.8.0+a", "\ud800", "*", "0.8.*", "-1")
MAIN: Final = ("mcore", "te", "torch", "numpy", "driver", "sm", "python", "x", "", "\x1b", "mcore==0.8.0 and te", "not")


def number(most: int) -> st.SearchStrategy[int]:
    """Return a number from 0 on. st.integers also draws constants of the modules that are imported at the time."""
    return st.sampled_from(range(most + 1))


@st.composite
def mutated(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Return a sample with up to five changes."""
    content = draw(st.sampled_from(samples))
    for _ in range(draw(number(5))):
        start = draw(number(len(content)))
        end = min(len(content), start + draw(number(12)))
        middle = draw(
            st.one_of(
                st.sampled_from(FRAGMENTS),
                st.lists(number(255), max_size=8).map(bytes),
                st.just(content[start:end] * 50),
                st.sampled_from(samples),
            )
        )
        content = content[:start] + middle + content[end:]
    return content


def file_kind(
    kind: str, names: Sequence[str], samples: Sequence[bytes], words: Sequence[str]
) -> st.SearchStrategy[Hostile]:
    """Return inputs of one changed file for a command, whose words have {file}."""

    def built(name: str, content: bytes, more: bytes) -> Hostile:
        files: dict[str, bytes | str] = {name: content, "file": more, "more.txt": more, "file.yaml": more}
        return Hostile(kind, files, tuple(word.replace("{file}", f"{{folder}}/{name}") for word in words))

    return st.builds(built, st.sampled_from(names), mutated(samples), mutated(samples))


def check(kind: str, names: Sequence[str], samples: Sequence[bytes]) -> st.SearchStrategy[Hostile]:
    """Return inputs of `megatrix check FILE`."""
    forms = ((), ("--json",), ("--format", "sarif"), ("--format", "github"))
    return st.sampled_from(forms).flatmap(lambda form: file_kind(kind, names, samples, ("check", "{file}", *form)))


def special_files() -> st.SearchStrategy[Hostile]:
    """Return a file that is none in place of one that a command reads: an error, or for a project's file none."""
    commands: dict[str, tuple[str, tuple[str, ...]]] = {
        "check": ("requirements.txt", ("check", "{folder}/requirements.txt")),
        "lock": ("uv.lock", ("check", "{folder}/uv.lock", "--json")),
        "match": ("train.log", ("match", "{folder}/train.log")),
        "plan": ("out/runs/20260101T000000000000Z-night/plan.json", ("report", "--out", "{folder}/out")),
        "consumer": (
            "tree/x.py",
            ("contract", "--consumer", "{folder}/tree", "--against", "transformer-engine==2.6.0"),
        ),
        "wheel": ("a.whl", ("contract", "--consumer", "{folder}/a.whl", "--against", "torch==2.6.0")),
        "surface": ("x.json.gz", ("contract", "--mcore", "{folder}/x.json.gz", "--te", "2.6.0")),
        "mcore": ("tree/megatron/core/package_info.py", ("contract", "--mcore", "{folder}/tree", "--te", "2.6.0")),
    }

    def built(command: str, special: str) -> Hostile:
        name, words = commands[command]
        # A project is searched: what is no file in it, or a link, is no part of it.
        strict = command not in ("consumer", "mcore") and special != "unreadable-name"
        strict = strict or special in ("fifo", "huge")
        unread = (2, 3) if words[0] == "check" else (2,)  # 3: the answer is unknown, for a file was not read
        return Hostile(f"no file: {command}", {name: special}, words, unread if strict else ())

    return st.builds(built, st.sampled_from(sorted(commands)), st.sampled_from(SPECIAL))


def projects() -> st.SearchStrategy[Hostile]:
    """Return Python projects for `contract --consumer`: a folder or a revision of a clone."""

    def built(first: bytes, repeated: str, whole: bool, committed: bool, target: str) -> Hostile:
        start = b"import transformer_engine.pytorch as te\nfrom megatron.core import mpu\n"
        files: dict[str, bytes | str] = {
            "clone/x.py": first if whole else start + repeated.encode(),
            "clone/pkg/__init__.py": b"from .y import *\n",
            "clone/pkg/y.py": b"from x import *\nimport transformer_engine\n",
        }
        project = "{folder}/clone@HEAD" if committed else "{folder}/clone"
        words = ("contract", "--consumer", project, "--against", target)
        return Hostile("project", files, words, git=committed)

    targets = st.sampled_from(
        ["transformer-engine==2.6.0", "megatron-core==0.16.1", "torch==2.6.0", "x", "torch=a.whl"]
    )
    return st.builds(built, mutated(SOURCES), st.sampled_from(REPEATED), st.booleans(), st.booleans(), targets)


def megatron_trees() -> st.SearchStrategy[Hostile]:
    """Return trees of Megatron-LM for `--mcore FOLDER`."""
    info = (b"MAJOR = 0\nMINOR = 9\nPATCH = 0\nPRE_RELEASE = 'rc0'\n", b"__version__ = '0.9.0'\n")

    def built(package_info: bytes, project: bytes, source: bytes, committed: bool) -> Hostile:
        files: dict[str, bytes | str] = {
            "clone/megatron/core/package_info.py": package_info,
            "clone/megatron/core/x.py": source,
            "clone/pyproject.toml": project,
        }
        word = "{folder}/clone@HEAD" if committed else "{folder}/clone"
        return Hostile("megatron tree", files, ("contract", "--mcore", word, "--te", "2.6.0"), git=committed)

    return st.builds(built, mutated(info), mutated(TOML), mutated(SOURCES), st.booleans())


def packed(files: Mapping[str, bytes], method: int) -> bytes:
    """Return a zip file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as wheel:
        for name, member in files.items():
            wheel.writestr(zipfile.ZipInfo(name), member, method)  # with a fixed time
    return content.getvalue()


def wheels() -> st.SearchStrategy[Hostile]:
    """Return wheels with changed content, changed bytes, or flags of the format (encrypted, unknown compression)."""

    def built(metadata: bytes, source: bytes, name: str, method: int, place: int, byte: int, side: str) -> Hostile:
        members = {"megatron_core-0.9.0.dist-info/METADATA": metadata, name: source, "megatron/core/__init__.py": b""}
        content = bytearray(packed(members, method))
        for mark in (b"PK\x03\x04", b"PK\x01\x02") if place < 12 else ():
            start = content.find(mark)
            content[start + 4 + place] = byte
        if place >= 12 and place < 40:
            content[len(content) * place // 40] = byte
        words = {
            "consumer": ("contract", "--consumer", "{folder}/a.whl", "--against", "transformer-engine==2.6.0"),
            "mcore": ("contract", "--mcore", "{folder}/a.whl", "--te", "2.6.0"),
            "te": ("contract", "--te", "{folder}/a.whl", "--mcore", "0.17.1"),
        }
        return Hostile("wheel", {"a.whl": bytes(content)}, words[side])

    metadata = mutated([b"Metadata-Version: 2.1\nName: megatron-core\nVersion: 0.9.0\nRequires-Dist: torch\n\nText\n"])
    names = st.sampled_from(
        ["megatron/core/x.py", "../x.py", "/x.py", "megatron/core/" + "a/" * 500 + "x.py", "\udcff.py"[1:]]
    )
    methods = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    sides = st.sampled_from(["consumer", "mcore", "te"])
    return st.builds(built, metadata, mutated(SOURCES), names, methods, number(50), number(255), sides)


def surfaces() -> st.SearchStrategy[Hostile]:
    """Return recorded surfaces and calls: changed JSON, packed or not."""
    names: dict[str, object] = {
        "transformer_engine": {"__version__": "=", "f": "(a,b=1)", "A": {"bases": [], "members": {}}}
    }
    surface = {
        "format": FORMAT,
        "version": "2.6.0",
        "package": "transformer-engine",
        "modules": names,
        "dormant": [],
        "origin": {},
    }
    calls = {
        "format": FORMAT,
        "version": "0.9.0",
        "consumer": "megatron-core",
        "provider": "x",
        "uses": [],
        "guards": [["Config", "a"]],
    }

    def built(content: bytes, pack: bool, side: str) -> Hostile:
        other = ("--te", "2.6.0") if side == "--mcore" else ("--mcore", "0.17.1")
        content = gzip.compress(content, 1, mtime=0) if pack else content
        return Hostile("surface", {"x.json.gz": content}, ("contract", side, "{folder}/x.json.gz", *other))

    samples = [json.dumps(value).encode() for value in (surface, calls)]
    return st.builds(
        built, mutated(samples), st.sampled_from([True, True, False]), st.sampled_from(["--mcore", "--te"])
    )


def runs(sample: Mapping[str, bytes]) -> st.SearchStrategy[Hostile]:
    """Return the folder of a run, changed; `sample` has the files of a true one, by path below the output folder."""
    names = sorted(name for name in sample if name.endswith((".json", ".jsonl")))

    def built(name: str, content: bytes, form: str) -> Hostile:
        files: dict[str, bytes | str] = {f"out/{path}": text for path, text in sample.items()}
        files[f"out/{name}"] = content
        return Hostile("run folder", files, ("report", "--out", "{folder}/out", *form.split()))

    forms = st.sampled_from(["", "--json"])
    return st.sampled_from(names).flatmap(
        lambda name: st.builds(built, st.just(name), mutated([sample[name]]), forms),
    )


def checkpoints() -> st.SearchStrategy[Hostile]:
    """Return checkpoints for `check --checkpoint`."""

    def built(config: bytes, latest: bytes, pickled: bytes) -> Hostile:
        files: dict[str, bytes | str] = {
            "ckpt/latest_checkpointed_iteration.txt": latest,
            "ckpt/iter_0000001/metadata.json": config,
            "ckpt/iter_0000001/.metadata": pickled,
        }
        return Hostile("checkpoint", files, ("check", "mcore=0.9.0", "--checkpoint", "{folder}/ckpt"))

    config = mutated([b'{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'])
    pickled = mutated(
        [b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93.", b"cos\nsystem\n(S'touch EXECUTED'\ntR."]
    )
    return st.builds(built, config, mutated([b"1", b"release"]), pickled)


def arguments() -> st.SearchStrategy[Hostile]:
    """Return arguments of commands that read no file."""
    names, versions, texts = st.sampled_from(MAIN), st.sampled_from(VERSIONS), st.sampled_from(TEXTS)
    value = st.one_of(versions, texts)
    clause = st.builds(
        lambda name, sign, text: f"{name}{sign}{text}", names, st.sampled_from(["==", ">=", "=", "~"]), value
    )
    selection = st.one_of(clause, st.builds(lambda a, b: f"({a}) and not ({b}", clause, clause), texts)

    def built(head: str, text: str, form: str) -> Hostile:
        return Hostile(
            f"arguments: {head.split()[0]}", {}, (*head.split(), text, *form.split()), (0, 1, 2, 3, 126, 127)
        )

    heads = [
        "plan --select",
        "plan --within",
        "check",
        "bisect",
        "surface record",
        "catalog check",
        "sources",
    ]
    heads += [
        "report --run",
        "run --dry-run --select",
        "build",
        "contract --mcore",
        "contract --te",
        "check --",
        "match",
    ]
    heads += [
        "bisect x --axis",
        "contract --consumer megatron-core --against",
        "check --python",
        "check --checkpoint",
        "",
    ]
    return st.builds(
        built, st.sampled_from([head for head in heads if head]), selection, st.sampled_from(["", "--json"])
    )


def entries() -> st.SearchStrategy[Hostile]:
    """Return catalog entries of a site."""
    entry = (
        b'title = "x"\nsymptom = "x"\ncause = "x"\nfix = "x"\n[[signature]]\nname = "a"\ntype = "ValueError"\n'
        b'message = "(a+)b"\n[[affected]]\nmcore = ">=0.6"\n[[case]]\nname = "a"\nlevel = "cpu"\nrun = "f"\n'
    )

    def built(content: bytes, code: bytes) -> Hostile:
        files: dict[str, bytes | str] = {
            "site/my_failure/failure.toml": content,
            "site/my_failure/reproduction.py": code,
        }
        return Hostile("entry", files, ("catalog", "check", "my-failure"))

    return st.builds(built, mutated([entry]), mutated([b"def f(rank):\n    raise ValueError('ab')\n"]))


def kinds(run: Mapping[str, bytes]) -> dict[str, st.SearchStrategy[Hostile]]:
    """Return the strategies by kind; `run` is a true run, see `runs`."""
    files: dict[str, Callable[[], st.SearchStrategy[Hostile]]] = {
        "requirements": lambda: check("requirements", ["requirements.txt", "a.in", "freeze"], REQUIREMENTS),
        "TOML lock": lambda: check("TOML lock", ["uv.lock", "poetry.lock", "pylock.toml", "pyproject.toml"], TOML),
        "YAML": lambda: check("YAML", ["environment.yml", "run.yaml", "job.yml"], YAML),
        "Dockerfile": lambda: check("Dockerfile", ["Dockerfile", "x.Containerfile"], DOCKERFILES),
        "script": lambda: check("script", ["train.sh", "job.sbatch"], SCRIPTS),
        "JSON lock": lambda: check("JSON lock", ["Pipfile.lock"], JSON),
        "log": lambda: file_kind("log", ["train.log", "a.gz"], PACKED_LOGS, ("match", "{file}", "--json")),
        "no file": special_files,
        "project": projects,
        "megatron tree": megatron_trees,
        "wheel": wheels,
        "surface": surfaces,
        "run folder": lambda: runs(run),
        "checkpoint": checkpoints,
        "arguments": arguments,
        "entry": entries,
    }
    return {name: make() for name, make in files.items()}
