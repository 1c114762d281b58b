"""The stack of a text, an image and a list of statements."""

from __future__ import annotations

import pytest

from matrix.ask.check.files.declared import Declared, ImageUse, Statement, Unread, UnreadKind
from matrix.ask.check.user_stack import (
    COMMAND_LINE,
    UserStack,
    allows,
    build,
    decide,
    image_contents,
    image_of,
    parse_text,
    possible,
    recorded,
    unrecorded,
)
from matrix.ground.catalog.failure import Build
from matrix.ground.catalog.model import GpuModel
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    DRIVER,
    MCORE,
    PYTHON,
    SM,
    TE,
    TORCH,
    UNKNOWN,
    WRITER_MCORE,
    Place,
    Stack,
    Value,
    component_named,
    component_title,
)
from matrix.ground.catalog.versions import Range
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import catalog, clause, failure, image, real
from tests.unit.catalogs import stack as stack_of


def stack(text: str) -> UserStack:
    return build(real(), parse_text(real(), text))


def test_an_image_has_its_torch_and_te() -> None:
    found = stack("base=ngc-24.07 mcore=0.9.0rc0+094d66b")
    assert {name: found.stack[name] for name in (BASE, TORCH, TE, MCORE, DRIVER)} == {
        BASE: "ngc-24.07",
        TORCH: "2.4.0a0+3bcc3cddb5",
        TE: "1.8.0+37280ec",
        MCORE: "0.9.0rc0+094d66b",
        DRIVER: UNKNOWN,
    }
    assert found.place(TE) == Place("in ngc-24.07")


def test_unnamed_component_is_unknown() -> None:
    """The torch of a stack without a container of NVIDIA is no container's."""
    found = stack("torch=2.4.1").stack
    assert {found[name] for name in (MCORE, TE, DRIVER, PYTHON, "numpy")} == {UNKNOWN}
    assert found[BASE] is ABSENT


def test_none_is_absent() -> None:
    assert stack("mcore=0.9.0 te=none").stack[TE] is ABSENT


def test_any_component_is_named() -> None:
    """By any of its names."""
    named = stack("flash-attn=2.8.3 cudnn=9.10 nvidia-nccl-cu12=2.27.3").stack
    assert named.versions == {"flash-attn": "2.8.3", "cudnn": "9.10", "nccl": "2.27.3"}


@pytest.mark.parametrize(
    ("torch", "container"),
    [
        ("2.4.0a0+3bcc3cddb5", "ngc-24.07"),
        ("2.4.0a0+3bcc3cddb5.nv24.07", "ngc-24.07"),
        ("2.7.0a0+ecf3bae40a.nv25.02", "ngc-25.02"),
        ("2.14.0a0+b2c75dd062.nv26.09", "ngc-26.09"),
    ],
)
def test_torch_of_a_container_stands_for_it(torch: str, container: str) -> None:
    """NGC's own version string and the catalog's abbreviation of it."""
    assert stack(f"torch={torch} mcore=0.8.0").stack[BASE] == container


def test_unknown_contents_of_an_image_are_unread() -> None:
    text = "the catalog does not know the torch and the Transformer Engine of nemo-25.07"
    assert stack("base=nemo-25.07").unread == (Unread(UnreadKind.IMAGE, text, COMMAND_LINE),)


def test_torch_over_an_image_replaces_its_rules() -> None:
    found = stack("base=ngc-24.07 torch=2.5.1")
    assert (found.stack[BASE], found.stack[TORCH], found.stack[TE]) == (ABSENT, "2.5.1", "1.8.0+37280ec")
    assert found.notes == ("torch 2.5.1 (command line) replaces that of ngc-24.07",)


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("mcore==0.8.0", "mcore=0.8.0"),
        ("mcore=core_v0.8.0", "mcore=0.8.0"),
        ("megatron_core=0.8.0", "mcore=0.8.0"),
        ("transformer-engine=1.9.0", "te=1.9.0"),
        ("nvcr.io/nvidia/pytorch:24.07-py3", "base=ngc-24.07"),
        ("base=nvcr.io/nvidia/pytorch:24.07-py3", "base=ngc-24.07"),
    ],
)
def test_usual_ways_of_writing_are_read(written: str, same: str) -> None:
    """A line of a requirements file, a tag of Megatron-LM, the name of a distribution or an image."""
    assert stack(written) == stack(same)


@pytest.mark.parametrize(
    ("reference", "id"),
    [
        ("nvcr.io#nvidia/pytorch:24.07-py3", "ngc-24.07"),
        ("docker://nvcr.io/nvidia/pytorch:24.07-py3", "ngc-24.07"),
        ("/lustre/images/nvidia+pytorch+24.07-py3.sqsh", "ngc-24.07"),
        ("nvcr.io/nvidia/nemo:24.09", "nemo-24.09"),
        ("nvcr.io/nvidia/pytorch:99.01-py3", None),
        ("ubuntu:24.04", None),
        ("my-pytorch-24.07", "ngc-24.07"),
        ("$BASE", None),
    ],
)
def test_image_reference_names_a_container(reference: str, id: str | None) -> None:
    found = image_of(real(), reference)
    assert (found and str(found.id)) == id


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mcre=0.8.0", "did you mean mcore"),
        ("flash-atn=2.8.3", "did you mean flash-attn"),
        ("mcore", "not a stack"),
        ("mcore=", "not a stack"),
        ("mcore=new", "not a version"),
        ("mcore=0.8.0 mcore=0.9.0", "named twice"),
        ("base=ngc-2407", "did you mean ngc-24.07"),
        ("driver=abc", "such as driver=535"),
        ("", "no stack"),
    ],
)
def test_an_invalid_stack_is_an_error(text: str, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        stack(text)


@pytest.mark.parametrize(
    ("text", "fix"), [("mcore=0.8.7", "0.8.0 or 0.9.0"), ("mcore=0.1.0", "0.5.0"), ("mcore=0.80", "0.8.0")]
)
def test_unknown_version_has_its_neighbours(text: str, fix: str) -> None:
    """Some digits in common are no sign: 0.11.2 is nearer to 0.11.0 than to 0.19.2. All of them are."""
    assert [part.fix for part in stack(text).unread] == [f"did you mean {fix}?"]


def test_later_statement_replaces_an_earlier_one() -> None:
    found = build(real(), [Statement(TORCH, "2.4.1", Place("a", 1)), Statement(TORCH, "2.5.1", Place("b", 2))])
    assert (found.stack[TORCH], found.place(TORCH)) == ("2.5.1", Place("b", 2))
    assert found.notes == ("torch: 2.4.1 (a:1), then 2.5.1 (b:2); the later one counts",)


def test_range_limits_an_open_axis() -> None:
    found = build(real(), [Statement(TORCH, UNKNOWN, Place("a", 1), ">=2.4,<2.5")])
    assert (found.limits, possible(real(), found, "torch")) == ({"torch": ">=2.4,<2.5"}, ["2.4.0", "2.4.1"])


def test_exact_version_survives_a_range() -> None:
    found = build(real(), [Statement(TORCH, "2.4.1", Place("a", 1)), Statement(TORCH, UNKNOWN, Place("b", 2), ">=2")])
    assert (found.stack[TORCH], found.notes) == ("2.4.1", ())


def test_lock_closes_the_axes() -> None:
    found = build(real(), [Statement(TORCH, "2.9.1", Place("uv.lock"))], closed=True)
    assert (found.stack[TE], found.place(TE), found.stack["numpy"]) == (ABSENT, Place("absent"), ABSENT)
    assert {found.stack[name] for name in (DRIVER, "cudnn")} == {UNKNOWN}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mcore=0.8.7", "megatron-core 0.8.7 is no release that this catalog knows: 0.8.0, then 0.9.0"),
        ("te=0.1", "Transformer Engine 0.1 is no release that this catalog knows: 1.0.0 is the first"),
        ("torch=9.9", "torch 9.9 is newer than every release that this catalog knows: "),
    ],
)
def test_version_that_does_not_exist_is_named(text: str, message: str) -> None:
    (why,) = unrecorded(real(), stack(text).stack).values()
    assert why.startswith(message)


@pytest.mark.parametrize("text", ["torch=2.9.1+cu128", "te=1.9", "mcore=0.9.0rc0", "te=1.8.0+37280ec", "te=2.9.0.dev1"])
def test_builds_and_candidates_exist(text: str) -> None:
    assert unrecorded(real(), stack(text).stack) == {}


HERE = Place("here", 1)


GONE = Unread(UnreadKind.FILE, "no such file", HERE)
OPEN = Unread(
    UnreadKind.VERSION, "no exact version of megatron-core is stated (>=0.9)", HERE, "name it, such as mcore=VERSION"
)


def test_stated_components_are_listed_in_order() -> None:
    """As text and as JSON; unknown ones have limits alone."""
    said = [
        Statement("numpy", "2.1", Place("b", 2)),
        Statement(TE, ABSENT, Place("a")),
        Statement(MCORE, UNKNOWN, HERE, ">=0.9"),
        Statement(TORCH, "2.4.1", HERE),
    ]
    user = build(real(), said, notes=["a remark"], unread=(GONE,))
    assert user.named == [("torch", "2.4.1", "here:1"), (TE, "none", "a"), ("numpy", "2.1", "b:2")]
    assert user.to_json() == {
        "components": {"torch": "2.4.1", TE: "none", "numpy": "2.1"},
        "limits": {MCORE: ">=0.9"},
        "sources": {"torch": "here:1", TE: "a", "numpy": "b:2"},
        "notes": ["a remark"],
    }
    assert user.unread == (GONE, OPEN)


def test_words_may_be_joined_by_commas() -> None:
    assert parse_text(real(), "mcore=0.8.0,torch=2.4.1") == [
        Statement(MCORE, "0.8.0", COMMAND_LINE),
        Statement(TORCH, "2.4.1", COMMAND_LINE),
    ]


def test_package_of_the_catalog_is_a_component() -> None:
    """One that only its failures name, without a line in components.toml."""
    known = catalog(failure(affected=(clause(packages={"zarr": ">=3"}),)))
    assert parse_text(known, "zarr=2.18") == [Statement("zarr", "2.18", COMMAND_LINE)]
    with pytest.raises(MatrixError) as caught:
        parse_text(known, "zarr=new")
    assert caught.value.expected == "a PEP 440 version, such as zarr=1.2.3"
    with pytest.raises(MatrixError, match="no such component"):
        parse_text(catalog(), "zarr=2.18")


@pytest.mark.parametrize(
    ("reference", "declared"),
    [
        ("nvcr.io/nvidia/pytorch:24.07-py3", Declared(pins=(Statement(BASE, "ngc-24.07", HERE),))),
        ("pytorch/pytorch:2.4.1-cuda12.1-runtime", Declared(pins=(Statement(TORCH, "2.4.1", HERE),))),
        (
            "example.org/train:24.04",
            Declared(
                unread=(
                    Unread(
                        UnreadKind.IMAGE,
                        "the catalog does not know the image example.org/train:24.04, so its packages are not known",
                        HERE,
                    ),
                )
            ),
        ),
    ],
)
def test_image_declares_its_contents(reference: str, declared: Declared) -> None:
    assert image_contents(real(), ImageUse(reference, HERE)) == declared


def test_place_of_a_base_names_its_source() -> None:
    """The image that is stated, or the torch that only this image has; none where another torch replaces its own."""
    assert stack("base=ngc-24.07").place(BASE) == COMMAND_LINE
    assert stack("torch=2.4.0a0+3bcc3cddb5").place(BASE) == Place("by its torch")
    assert stack("base=ngc-24.07 torch=2.5.1").place(BASE) is None
    assert stack("torch=2.5.1").place(BASE) is None
    assert stack("mcore=0.9.0").stack[BASE] is UNKNOWN


def test_torch_in_an_unknown_image_replaces_nothing() -> None:
    user = stack("base=nemo-25.07 torch=2.9.1 te=2.9.0")
    assert (user.stack[BASE], user.notes, user.unread) == ("nemo-25.07", (), ())


def test_label_names_the_container_of_a_torch() -> None:
    """Two images have this torch; NVIDIA_PYTORCH_VERSION says which one."""
    said = [Statement(TORCH, "2.2.0a0+81ea7a4", HERE)]
    assert build(real(), said).stack[BASE] is ABSENT
    assert build(real(), said, label="24.01").stack[BASE] == "ngc-24.01"
    assert build(real(), said, label="23.12").stack[BASE] == "ngc-23.12"


def test_lock_keeps_the_places_of_its_packages() -> None:
    user = build(real(), [Statement(TORCH, "2.9.1", HERE), Statement(MCORE, UNKNOWN, HERE, ">=0.9")], closed=True)
    assert {name: user.place(name) for name in (TORCH, MCORE, TE, "numpy")} == {
        TORCH: HERE,
        MCORE: HERE,
        TE: Place("absent"),
        "numpy": None,
    }
    assert (user.stack[TORCH], user.stack[MCORE], user.stack[TE]) == ("2.9.1", UNKNOWN, ABSENT)


def test_limits_of_a_known_version_do_not_count() -> None:
    user = build(real(), [Statement(TORCH, "2.4.1", HERE), Statement(TORCH, UNKNOWN, HERE, ">=2")])
    assert user.limits == {}
    assert build(real(), [Statement(TORCH, "2.4.1", HERE, ">=2")]).limits == {}


def limited(**limits: str) -> UserStack:
    return UserStack(Stack(), limits={component_named(name): text for name, text in limits.items()})


@pytest.mark.parametrize(
    ("limits", "version", "allowed"),
    [
        ("", "2.4.0", True),
        (">=2.4", "2.4.0", True),
        (">=2.4", "2.3.1", False),
        (">=2.3", "2.4.0rc1", True),
        (">=2.4", "", True),  # a base whose torch is not known
        ("latest", "2.4.0", True),
    ],
)
def test_limits_allow_versions(limits: str, version: str, allowed: bool) -> None:
    assert allows(limited(torch=limits) if limits else limited(), TORCH, version) is allowed


@pytest.mark.parametrize(
    ("component", "limits", "bound", "versions"),
    [
        ("mcore", ">=0.8", "", ["0.8.0", "0.9.0"]),  # as the catalog records them
        ("mcore", "", "", ["0.7.0", "0.8.0", "0.9.0"]),
        ("setuptools", "", ">=82", []),
        ("setuptools", ">=9,<82", "", ["9", "9.1"]),
        ("setuptools", ">=9,<82", ">=10,!=12rc1", ["9", "9.1", "10", "10.1", "12rc1", "12.1"]),
        ("setuptools", "<9", "", ["0"]),
        ("setuptools", "==8.*", "", ["8", "8.1"]),
        ("setuptools", ">=2,<1", "", []),
    ],
)
def test_possible_versions_of_an_unknown_component(
    component: str, limits: str, bound: str, versions: list[str]
) -> None:
    user = limited(**{component: limits}) if limits else limited()
    assert possible(catalog(), user, component_named(component), bound) == versions


def test_limits_without_a_bound_are_their_own_samples() -> None:
    assert possible(catalog(), limited(setuptools=">=9"), "setuptools") == ["9", "9.1"]


@pytest.mark.parametrize(
    ("limits", "component", "bound", "expected"),
    [
        ({}, "mcore", "<0.9", None),
        ({}, "mcore", "<1", None),  # a version that is not recorded
        ({}, "mcore", "<0.1", False),
        ({"mcore": ">=0.8"}, "mcore", "<0.8", False),
        ({"mcore": ">=0.8"}, "mcore", ">=0.8", True),
        ({"mcore": ">=0.8"}, "mcore", ">=0.9", None),
        ({"torch": ">=2"}, "mcore", ">=0.7", None),
        ({}, "setuptools", ">=82", None),
        ({"setuptools": ">=83"}, "setuptools", ">=82", True),
        ({"setuptools": "<83"}, "setuptools", ">=82", None),
        ({"setuptools": "<82"}, "setuptools", ">=82", False),
        ({"setuptools": ">=2,<1"}, "setuptools", ">=82", None),  # nothing is allowed: nothing is known
    ],
)
def test_limits_decide_an_unknown_component(
    limits: dict[str, str], component: str, bound: str, expected: bool | None
) -> None:
    assert decide(catalog(), limited(**limits), component_named(component), Range(bound)) is expected


@pytest.mark.parametrize(
    ("limits", "images", "expected"),
    [
        ("", ("ngc-24.07",), None),
        ("<2.4.1", ("ngc-24.07",), None),
        (">=2.5a0", ("ngc-24.07",), False),
        (">=2.5a0", ("ngc-24.07", "ngc-24.09"), None),
        (">=2.5a0", ("ngc-26.08",), None),  # its torch is not known
        ("", ("gone",), False),
    ],
)
def test_limits_of_torch_decide_an_unknown_image(limits: str, images: tuple[str, ...], expected: bool | None) -> None:
    known = catalog(
        containers=(
            image("ngc-24.07", "2.4.0a0+3bcc3cd"),
            image("ngc-24.09", "2.5.0a0+b465a58"),
            image("ngc-26.08", None),
        )
    )
    assert decide(known, limited(torch=limits) if limits else limited(), BASE, images) is expected


def test_recorded_versions_are_sorted_as_versions() -> None:
    models = (GpuModel("B200", "10.0"), GpuModel("H100", "9.0"), GpuModel("H200", "9.0"))  # type: ignore[arg-type]
    known = catalog(gpus=models)
    assert recorded(known, SM) == ["9.0", "10.0"]
    assert recorded(known, DRIVER) == ["535"]
    assert recorded(known, WRITER_MCORE) == recorded(known, MCORE) == ["0.7.0", "0.8.0", "0.9.0"]
    assert recorded(known, "numpy") == []


BUILD = Build(MCORE, "0.8.5+0a1b2c3", "megatron-lm@0a1b2c3", "")  # type: ignore[arg-type]
KNOWN_BUILDS = catalog(
    failure(build=(BUILD,)),
    stacks=[stack_of("break", "torch-2.4.0", "0.8.6", te="1.9.5")],
    containers=(image("ngc-24.07", "2.4.7a0+3bcc3cd", "1.8.7+37280ec"),),
)


@pytest.mark.parametrize(
    ("component", "version", "why"),
    [
        (MCORE, "0.8.0", ""),
        (MCORE, "0.8", ""),
        (MCORE, "0.8.0+local", ""),
        (MCORE, "0.8.0rc1", ""),
        (MCORE, "0.8.5+0a1b2c3", ""),  # a build of a failure
        (MCORE, "0.8.6", ""),  # of a report
        (TE, "1.9.5", ""),
        (TE, "1.8.7+37280ec", ""),  # of an image
        (TE, "0.8.5+0a1b2c3", "is no release that this catalog knows: 1.8 is the first"),
        (MCORE, "0.8.0.post1", "is no release that this catalog knows: 0.8.0, then 0.9.0"),
        (MCORE, "0.8.7rc1", "is no release that this catalog knows: 0.8.0, then 0.9.0"),
        (MCORE, "0.9.1", "is newer than every release that this catalog knows: 0.9.0 is the newest"),
        (MCORE, "0.6.0", "is no release that this catalog knows: 0.7.0 is the first"),
        (WRITER_MCORE, "0.6.0", "is no release that this catalog knows: 0.7.0 is the first"),
    ],
)
def test_version_that_may_not_exist_has_a_reason(component: str, version: str, why: str) -> None:
    named = {component: f"{component_title(component)} {version} {why}"} if why else {}
    assert unrecorded(KNOWN_BUILDS, Stack({component: version})) == named


def test_without_recorded_releases_every_version_may_exist() -> None:
    assert unrecorded(catalog(megatron_core=()), Stack({MCORE: "99"})) == {}


@pytest.mark.parametrize(
    "reference",
    [
        "ubuntu:24.04",
        "docker.io/library/python:3.12-slim",
        "nvidia/cuda:12.9.1-devel-ubuntu22.04",
        "debian",
        "python@sha256:0",
    ],
)
def test_plain_image_contains_nothing_of_a_stack(reference: str) -> None:
    assert image_contents(real(), ImageUse(reference, HERE)) == Declared()


@pytest.mark.parametrize("reference", ["x/my-python:1", "example.org/ubuntu-train:1", "nvidia/cuda-train:1"])
def test_image_with_such_a_name_is_not_known(reference: str) -> None:
    (unread,) = image_contents(real(), ImageUse(reference, HERE)).unread
    assert unread.remedy.startswith("name what it contains, such as torch=2.9.1 te=2.9.0")


@pytest.mark.parametrize(
    ("limits", "kept"),
    [("", True), (">=2.4", True), ("<3", True), (">=2.9", False), ("===1dcf0da", False), ("== no", True)],
)
def test_limits_decide_whether_an_image_keeps_torch(limits: str, kept: bool) -> None:
    """An installer replaces what does not fit; a commit is no release."""
    statements = [Statement(BASE, "ngc-24.07", HERE), Statement(TORCH, UNKNOWN, HERE, limits)]
    user = build(real(), statements)
    assert (user.stack[TORCH] == "2.4.0a0+3bcc3cddb5") is kept
    assert bool(user.unread) is not kept


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((ABSENT, "2.4.1"), "2.4.1"),
        (("2.4.1", ABSENT), ABSENT),
        ((ABSENT, UNKNOWN), UNKNOWN),
        (("2.4.1", UNKNOWN), "2.4.1"),
    ],
)
def test_later_statement_counts(values: tuple[Value, Value], expected: Value) -> None:
    assert build(real(), [Statement(TORCH, value, HERE) for value in values]).stack[TORCH] == expected


@pytest.mark.parametrize("values", [(("", "===1dcf0da"), ("0.15.0", "")), (("0.15.0", ""), ("", "===1dcf0da"))])
def test_commit_beside_a_release_is_not_known(values: tuple[tuple[str, str], ...]) -> None:
    user = build(real(), [Statement(MCORE, value or UNKNOWN, HERE, limits) for value, limits in values])
    assert user.stack[MCORE] == "0.15.0"
    assert [item.text for item in user.unread] == ["megatron-core of 1dcf0da is no release"]


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("gpu=H100", [("sm", "9.0", "")]),
        ("mcore>=0.12,<0.14 torch=2.4.1", [("megatron-core", UNKNOWN, "<0.14,>=0.12"), ("torch", "2.4.1", "")]),
        ("mcore >= 0.12, torch = 2.4.1", [("megatron-core", UNKNOWN, ">=0.12"), ("torch", "2.4.1", "")]),
        ("te~=2.8", [("transformer-engine", UNKNOWN, "~=2.8")]),
        ("mcore=newest", [("megatron-core", real().releases("megatron-core")[-1].version, "")]),
        ("te=none,torch==2.4.1", [("transformer-engine", ABSENT, ""), ("torch", "2.4.1", "")]),
        ("mcore=core_v0.8.0", [("megatron-core", "0.8.0", "")]),
    ],
)
def test_check_takes_the_words_of_fit(text: str, stated: list[tuple[str, object, str]]) -> None:
    statements = parse_text(real(), text)
    assert [(each.name, each.value, each.limits) for each in statements] == stated


@pytest.mark.parametrize("text", ["torch>=x", "gpu=H9000", "torch>", "torch", "mcore=0.8.0 mcore>=0.9"])
def test_word_that_states_nothing_is_refused(text: str) -> None:
    with pytest.raises(MatrixError):
        parse_text(real(), text)


@pytest.mark.parametrize(
    ("limits", "perhaps", "expected"),
    [
        (">=2.4", False, ("2.4.1", "")),
        (">=2.5", False, (UNKNOWN, ">=2.5")),
        ("<2.4", False, (UNKNOWN, "<2.4")),
        (">=2.5", True, (UNKNOWN, "2.4.1 or >=2.5")),
    ],
)
def test_range_replaces_a_version_outside_of_it(limits: str, perhaps: bool, expected: tuple[Value, str]) -> None:
    """As an installer does: pip install torch==2.4.1, then pip install 'torch>=2.5'."""
    statements = [Statement(TORCH, "2.4.1", Place("a")), Statement(TORCH, UNKNOWN, Place("b"), limits, perhaps)]
    found = build(real(), statements)
    assert (found.stack[TORCH], found.limits.get(TORCH, "")) == expected


def test_one_of_three_versions_is_not_known() -> None:
    statements = [Statement(TORCH, version, Place("a"), perhaps=True) for version in ("2.4.1", "2.5.0", "2.6.0")]
    found = build(real(), statements)
    assert (found.stack[TORCH], found.limits[TORCH]) == (UNKNOWN, "2.4.1 or 2.5.0 or 2.6.0")
