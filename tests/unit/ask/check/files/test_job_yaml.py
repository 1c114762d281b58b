"""YAML that starts jobs, by the table of its kinds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from matrix.ask.check.files.declared import Declared, UnreadKind, load_yaml
from matrix.ask.check.files.job_yaml import job_kinds, kind_of, read_yaml


def declared(text: str, files: Mapping[str, str] = {}, where: str = "job.yaml") -> Declared:
    return read_yaml(text, where, lambda name: (name, files[name]) if name in files else None)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{apiVersion: batch/v1, kind: Job}", "Kubernetes object"),
        ("{on: push, jobs: {a: {steps: []}}}", "GitHub workflow"),
        ("{name: x, runs: {using: composite, steps: []}}", "GitHub action"),
        ("{services: {a: {image: b}}}", "docker compose"),
        ("{run: x, num_nodes: 2}", "SkyPilot task"),
        ("{stages: [a], a: {script: [b]}}", "GitLab pipeline"),
        ("{image: {repository: a, tag: b}}", "values of a Helm chart"),
        ("{trainer: {image: {repository: a, tag: b}}}", "values of a Helm chart"),
        ("{apiVersion: v2, name: chart}", ""),
        ("{services: [a, b]}", ""),
        ("{run: x}", ""),
        ("[a]", ""),
        ("a", ""),
    ],
)
def test_kind_comes_from_its_keys(text: str, kind: str) -> None:
    found = kind_of(load_yaml(text, "x")[0])
    assert (found.name if found else "") == kind


def test_every_kind_has_a_source_and_units() -> None:
    assert all("https://" in kind.source and kind.unit and kind.keys for kind in job_kinds())


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ("{command: [torchrun, a.py], args: [--x, '1']}", ["torchrun", "a.py", "--x", "1"]),
        ("{args: [bash, -c, 'torchrun a.py']}", ["torchrun", "a.py"]),
        ("{command: [sh, -lc], args: ['N=2; torchrun --n $N a.py']}", ["torchrun", "--n", "2", "a.py"]),
        ("{command: [torchrun, $(GPUS), a.py], env: [{name: GPUS, value: '8'}]}", ["torchrun", "8", "a.py"]),
        ("{command: [torchrun, $(GPUS), a.py]}", ["torchrun", "$(GPUS)", "a.py"]),
    ],
)
def test_command_of_a_container(container: str, words: list[str]) -> None:
    (command,) = declared(f"{{apiVersion: v1, kind: Pod, spec: {{containers: [{container}]}}}}").commands
    assert list(command.words) == words


@pytest.mark.parametrize(
    ("text", "image"),
    [
        (
            "{image: {registry: nvcr.io, repository: nvidia/pytorch, tag: 24.10-py3}}",
            "nvcr.io/nvidia/pytorch:24.10-py3",
        ),
        ("{image: {repository: a, tag: 24.10}}", "a:24.10"),
        ("{run: x, resources: {image_id: 'docker:a:1'}}", "a:1"),
        ("{image: 'a:$TAG', variables: {TAG: '1'}, t: {script: [x]}}", "a:1"),
        ("{default: {image: {name: a:1}}, t: {script: [x]}}", "a:1"),
        ("{image: b:2, t: {image: a:1, script: [x]}}", "a:1"),
        ("{services: {t: {image: 'a:${TAG:-1}'}}}", "a:1"),
        ("{env: {I: a:1}, jobs: {t: {container: '${{ env.I }}', steps: [{run: x}]}}}", "a:1"),
        ("{jobs: {t: {container: {image: a:1}, steps: [{run: x}]}}}", "a:1"),
        ("{jobs: {t: {container: '${{ matrix.image }}', steps: [{run: x}]}}}", "${{ matrix.image }}"),
    ],
)
def test_image_of_a_unit(text: str, image: str) -> None:
    assert [use.reference for use in declared(text).images] == [image]


def test_image_beside_the_job_does_not_count() -> None:
    text = "{services: {train: {image: a:1, command: torchrun train.py}, db: {image: redis:7}}}"
    assert [use.reference for use in declared(text).images] == ["a:1"]


def test_image_alone_counts() -> None:
    assert [use.reference for use in declared("{services: {db: {image: redis:7}}}").images] == ["redis:7"]


def test_workflow_opens_files_of_its_repository() -> None:
    text = "{jobs: {t: {steps: [{run: pip install -r r.txt}]}}}"
    assert declared(text, {"../../r.txt": "torch==2.4.1"}).pins[0].version == "2.4.1"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{jobs: {t: {uses: a/b/.github/workflows/c.yml@main}}}", "a/b/.github/workflows/c.yml@main"),
        ("{jobs: {t: {steps: [{uses: ./setup}, {uses: actions/checkout@v4}]}}}", "./setup"),
        ("{include: base.yml, t: {script: [x]}}", "base.yml"),
        ("{include: [{local: a.yml}], t: {script: [x]}}", "a.yml"),
        ("{services: {t: {build: ./image}}}", "image/Dockerfile"),
        ("{services: {t: {build: {context: a, dockerfile: b}}}}", "a/b"),
        ("{services: {t: {image: a, extends: {file: base.yaml, service: t}}}}", "base.yaml"),
        ("{apiVersion: x/v1, kind: Training, spec: {runtime: a}}", "Training"),
    ],
)
def test_what_belongs_to_it_is_named(text: str, name: str) -> None:
    assert [name in unread.text for unread in declared(text).unread] == [True]


@pytest.mark.parametrize("kind", ["ConfigMap", "PersistentVolumeClaim"])
def test_objects_that_start_nothing_are_read(kind: str) -> None:
    assert declared(f"{{apiVersion: v1, kind: {kind}}}") == Declared()


def test_build_is_read_from_its_folder() -> None:
    files = {"a/Dockerfile": "FROM b:1\nCOPY r.txt /\nRUN pip install -r /r.txt", "a/r.txt": "torch==2.4.1"}
    found = declared("{services: {t: {build: a}}}", files)
    assert ([use.reference for use in found.images], found.pins[0].version) == (["b:1"], "2.4.1")


def test_place_is_the_line_of_the_script() -> None:
    text = "jobs:\n  t:\n    steps:\n    - run: |\n        true\n        pip install torch==2.4.1\n"
    assert declared(text).pins[0].place.line == 6


@pytest.mark.parametrize(
    "text", ["script", "a: &a [*a]\nt: {script: *a}", "x: &x {containers: [*x]}\napiVersion: v1\nkind: Job"]
)
def test_cycles_end(text: str) -> None:
    declared(text)


def test_environment_may_be_a_list() -> None:
    text = "{services: {t: {image: a, command: torchrun a.py, environment: [A=1, B=x=y, C]}}}"
    assert declared(text).commands[0].environ == {"A": "1", "B": "x=y"}


@pytest.mark.parametrize(
    "text", ["{image: {repository: a}, command: b, args: 5}", "{services: {t: {build: [a], image: {}}}}"]
)
def test_unexpected_values_are_left_out(text: str) -> None:
    assert declared(text).commands == ()


def test_table_that_aliases_repeat_counts_once() -> None:
    text = "{apiVersion: v1, kind: Job, a: &a {containers: [{image: 'x:1'}]}, b: *a}"
    assert [use.reference for use in declared(text).images] == ["x:1"]


SERVICES = (
    "{services: {a: {image: 'a:1', command: %s}, b: {image: 'b:1', command: %s}, c: {image: 'a:1', command: %s}}}"
)


def test_containers_with_other_images_are_other_stacks() -> None:
    stacks = declared(SERVICES % ("python a.py", "python b.py", "python c.py")).stacks
    found = [({use.reference for use in stack.images}, [job.words[1] for job in stack.commands]) for stack in stacks]
    assert found == [({"a:1"}, ["a.py", "c.py"]), ({"b:1"}, ["b.py"])]


def test_one_image_is_one_stack() -> None:
    assert len(declared(SERVICES % ("python a.py", "sleep 1", "python c.py")).stacks) == 1


def test_first_stack_has_what_the_file_states() -> None:
    jobs = "a: {container: 'a:1', steps: [{run: python a.py}]}, b: {container: 'b:1', steps: [{run: python b.py}]}"
    stacks = declared(f"{{jobs: {{{jobs}, c: {{uses: ./c.yml}}}}}}").stacks
    assert [[use.reference for use in stack.images] for stack in stacks] == [["a:1"], ["b:1"]]
    assert [[item.text for item in stack.unread] for stack in stacks] == [["./c.yml is not read"], []]


RESOURCE = """apiVersion: example.com/v1
kind: WorkloadRun
spec:
  image: x:1
  config:
    inline:
      train.sh: |
        #!/bin/bash
        pip install torch==2.4.1
"""


def test_script_under_any_key_is_read() -> None:
    """The kind of the resource stays unknown, and what its script installs counts."""
    declared = read_yaml(RESOURCE, "a.yaml", lambda _: None)
    assert [(pin.name, pin.value, pin.place.line) for pin in declared.pins] == [("torch", "2.4.1", 9)]
    assert [item.kind for item in declared.unread] == [UnreadKind.YAML]


def test_container_starts_the_script_of_that_name() -> None:
    text = f"{RESOURCE}  containers:\n  - name: a\n    image: x:1\n    command: [bash, /config/train.sh]\n"
    declared = read_yaml(text, "a.yaml", lambda _: None)
    assert [(pin.name, pin.value) for pin in declared.pins] == [("torch", "2.4.1")]
    assert declared.unread == ()


def test_text_that_is_no_script_is_not_read() -> None:
    text = RESOURCE.replace("#!/bin/bash\n", "a note\n").replace("pip install", "we pip install")
    assert read_yaml(text, "a.yaml", lambda _: None).pins == ()


def test_scripts_under_one_key_all_count() -> None:
    text = f"{RESOURCE}    other:\n      train.sh: |\n        #!/bin/bash\n        pip install megatron-core==0.8.0\n"
    pins = read_yaml(text, "a.yaml", lambda _: None).pins
    assert [pin.name for pin in pins] == ["torch", "megatron-core"]


@pytest.mark.parametrize(
    ("build", "image"),
    [
        ("{context: .}", "b:1"),
        ("{context: ., args: {TAG: 2}}", "b:2"),
        ("{context: ., args: [TAG=2]}", "b:2"),
        ("{context: ., target: first, args: {TAG: 2}}", "a:2"),
    ],
)
def test_arguments_and_target_choose_an_image(build: str, image: str) -> None:
    files = {"Dockerfile": "ARG TAG=1\nFROM a:$TAG AS First\nFROM b:$TAG\n"}
    found = declared(f"{{services: {{x: {{build: {build}}}}}}}", files)
    assert [one.reference for one in found.images] == [image]
