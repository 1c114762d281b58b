"""The whole answer, with the project's own catalog."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ask.check.answer import CheckResult
from matrix.ask.check.checking import Question, check
from matrix.ask.check.declaring import declared_stack
from matrix.ask.check.examine import Assumed
from matrix.ask.check.files.declared import Declared, Statement, UnreadKind, UserCommand
from matrix.ask.check.remedies import UpgradeStep
from matrix.ask.check.rulings import KNOWN_BREAK, Standing
from matrix.ask.check.training_job import job_of
from matrix.ask.check.user_stack import COMMAND_LINE, UserStack, build, parse_text, recorded
from matrix.ground.cases import machine_requirements
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.loading import GPU_FILE, NIGHT_FILE, GpuRun, ProjectNight, evidence_of, night_of
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import BASE, MCORE, TE, TORCH, UNKNOWN, Place, Stack, short
from matrix.ground.catalog.versions import parse
from matrix.ground.verdicts.record import Verdict
from matrix.ground.verdicts.trend import PastResult
from matrix.prove.planning.selection import select_possible
from tests.founding import (
    BEHIND_MPI,
    CALL,
    COMMON,
    EXTRA_STATE,
    MASK,
    MPI,
    NUMPY,
    PINNED,
    RESILIENCY,
    RESUME,
    SAVE,
    SETUPTOOLS,
    SHIFTED_CALL,
    TRANSFORMERS,
)
from tests.unit.catalogs import few, real


def checked(text: str, question: Question | None = None, catalog: Catalog | None = None) -> CheckResult:
    catalog = catalog or real()
    return check(catalog, build(catalog, parse_text(catalog, text)), question or Question(), {})


def standing(result: CheckResult, failure: str) -> Standing:
    return next(one.standing for one in result.failures if one.failure.id == failure)


def test_the_reported_stack_breaks_and_the_fix_works() -> None:
    assert standing(checked("mcore=0.8.0 torch=2.4.0"), SAVE) is Standing.WILL_BREAK
    assert standing(checked("mcore=0.9.0 torch=2.4.0"), SAVE) is Standing.WORKS


def test_current_releases_do_not_gate() -> None:
    """Breaks that need an option alone leave a stack free of known breaks."""
    result = checked("mcore=0.18.2 te=2.20.2 torch=2.9.1 driver=580 sm=9.0")
    assert (result.breaks, standing(result, MASK)) == (False, Standing.WITH_OPTIONS)


@pytest.mark.parametrize("text", ["base=ngc-24.07", "torch=2.4.1", "te=2.9.0 torch=2.9.1", "base=nemo-25.07"])
def test_incomplete_stack_names_what_would_break(text: str) -> None:
    result = checked(text)
    assert not result.breaks
    assert standing(result, SAVE) is (Standing.WITH_VERSIONS)
    assert result.of(Standing.WITH_VERSIONS)[0].needs.startswith("with ")


def test_version_that_does_not_exist_is_unknown() -> None:
    result = checked("mcore=9.9.9 torch=9.9")
    assert not result.of(Standing.WILL_BREAK)
    assert [item.kind for item in result.unknown] == [UnreadKind.VERSION, UnreadKind.VERSION]
    assert standing(result, SAVE) is Standing.UNKNOWN


def test_history_is_the_evidence() -> None:
    run = PastResult(
        1, "20260101-000000-night", Verdict.REPRODUCED, cell="torch-2.4.0/x", started="2026-01-01T00:00:00Z"
    )
    result = check(real(), build(real(), parse_text(real(), "mcore=0.8.0 torch=2.4.0")), Question(), {SAVE: (run,)})
    (found,) = [one for one in result.failures if one.failure.id == SAVE]
    assert found.to_json()["runs"][0]["run"] == "20260101-000000-night"


def test_unlisted_calls_of_level_contract_are_reported() -> None:
    result = checked("mcore=0.8.0 te=1.10.0 torch=2.4.0")
    assert standing(result, SHIFTED_CALL) is Standing.SILENT
    assert not result.calls
    (found,) = checked("mcore=0.15.2 te=2.2.0 torch=2.9.1").calls
    assert [one.call_site.function for one in found.findings] == ["TEActivationOp.__new__"]


def test_unrecorded_release_is_no_error() -> None:
    assert "no recorded" in checked("mcore=0.8.0 te=1.8.0+abc torch=2.4.0").calls_problem


def test_options_describe_a_job() -> None:
    """The report on memory, of a job that no command describes."""
    given = {"seq-length": "131072", "ranks-per-host": "8", "host-memory": "880G", "shm": "64G"}
    result = checked("mcore=0.16.1 torch=2.9.1 te=none", Question(assumed=Assumed(given=given)))
    (found,) = [one for one in result.failures if one.failure.id == MASK]
    assert (found.standing, found.certain) == (Standing.WILL_BREAK, True)
    assert found.report is not None
    assert "41448 tokens (/dev/shm is the limit)" in found.report.text
    assert found.to_json()["numbers"]["longest"] == {"sequence": 41448, "resource": "/dev/shm"}


def test_launcher_alone_leaves_the_flag_open() -> None:
    question = Question(assumed=Assumed({"launcher": "torchrun", "world-size": 8}))
    result = checked("mcore=0.9.0 te=1.9.0 torch=2.4.0a0+3bcc3cddb5", question)
    (found,) = [one for one in result.failures if one.failure.id == MPI]
    assert (found.standing, found.certain) == (Standing.WITH_OPTIONS, False)
    computed = [one.text for one in found.workarounds if one.kind != "text"]
    assert computed == ["start it with mpirun", "megatron-core 0.10.0 instead of 0.9.0"]


def test_mpirun_clears_the_mpi_failure() -> None:
    question = Question(assumed=Assumed({"launcher": "mpirun", "world-size": 8}))
    assert standing(checked("mcore=0.9.0 te=1.9.0 torch=2.4.0a0+3bcc3cddb5", question), MPI) is Standing.NOT_REACHED


# May a job resume with these releases from a checkpoint of those? The failure, and what its proof selects.
RESUMES = {
    "mcore=0.13.1 writer_mcore=0.15.3 torch=2.13.0": (
        RESUME,
        "torch-2.13.0 and mcore==0.13.1 and writer_mcore==0.15.3",
    ),
    "mcore=0.18.2 writer-mcore=0.19.2": (COMMON, "mcore==0.18.2 and writer_mcore==0.19.2"),
    "te=2.3.0 writer_te=1.13.0": (EXTRA_STATE, "te==2.3.0 and writer_te==1.13.0"),
}
PACKAGES = {
    "mcore=0.8.0 setuptools=84.2.1": (SETUPTOOLS, "mcore==0.8.0"),
    "mcore=0.18.2 nvidia-resiliency-ext=0.4.1": (RESILIENCY, "mcore==0.18.2 and nvidia-resiliency-ext==0.4.1"),
    "mcore=0.17.1 transformers=5.2": (TRANSFORMERS, "mcore==0.17.1 and transformers==5."),
}
STACKS = [
    "mcore=0.8.0 torch=2.4.1",
    "mcore=0.17.1 te=2.9.0 torch=2.9.1",
    "mcore=0.8.0 te=1.10.0 torch=2.4.0",
    "base=ngc-24.07 mcore=0.8.0",
    "mcore=0.12.1 te=2.2.0 torch=2.8.0",
    "mcore=0.15.0 te=2.7.0 torch=2.10.0",
    "mcore=0.18.2 te=2.2.0 torch=2.13.0",
    "mcore=0.9.0 te=2.3.0 torch=2.6.0 driver=470.161.03 sm=8.0",
    *RESUMES,
    *PACKAGES,
]


@pytest.mark.parametrize("text", STACKS)
def test_every_proof_selects_a_broken_case(text: str) -> None:
    proofs = [one.prove for one in checked(text).failures if one.prove]
    assert proofs
    for proof in proofs:
        expression = proof.partition('"')[2].rstrip('"')
        planned = select_possible(real(), tuple(Level), expression)
        assert {one.expectation for one in planned} == {Expectation.BROKEN}
        assert all(machine_requirements.possible(real(), one) for one in planned)


@pytest.mark.parametrize(("text", "proof"), (RESUMES | PACKAGES).items())
def test_writer_and_package_failures_are_proved(text: str, proof: tuple[str, str]) -> None:
    """The proof names the writer's releases, or the packages of the cells."""
    failure, selected = proof
    (one,) = (one for one in checked(text).failures if one.failure.id == failure)
    assert one.standing in KNOWN_BREAK
    assert f"failure=={failure} and " in one.prove
    assert selected in one.prove


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--save x --use-dist-ckpt --dist-ckpt-format torch_dist", Standing.WILL_BREAK),
        ("--save x --use-dist-ckpt --dist-ckpt-format zarr", Standing.NOT_REACHED),
        ("--save x --use-dist-ckpt", Standing.WITH_OPTIONS),
    ],
)
def test_option_reaches_a_rule_of_one_release(options: str, expected: Standing) -> None:
    """megatron-core 0.6 saves with zarr by default, which works; later releases do not."""
    job = job_of(UserCommand(("pretrain_gpt.py", *options.split()), Place("train.sh", 1)))
    result = checked("mcore=0.6.0 torch=2.4.1", Question((job,)))
    assert standing(result, SAVE) is expected


def test_resuming_is_known_to_work() -> None:
    works = checked("mcore=0.19.2 writer_mcore=0.16.1").of(Standing.WORKS)
    assert RESUME in {one.failure.id for one in works}


def test_upgrade_answers_whether_a_job_may_resume() -> None:
    (core,) = checked("mcore=0.15.3 torch=2.9.1 te=2.10.0", Question(upgrades=(MCORE,))).upgrades
    assert core.best
    assert f"reading this stack's checkpoints with {core.best.version}: " in str(core)
    (works,) = (answer for answer in core.resuming.split("; ") if answer.startswith("known to work: "))
    assert RESUME in works.partition(": ")[2].split(", ")
    (torch,) = checked("torch=2.9.1", Question(upgrades=(BASE,))).upgrades
    assert torch.resuming == ""


def test_refuted_workaround_is_left_out() -> None:
    refuted = [one.text for one in real().failure(SAVE).workaround if one.fails]
    (found,) = [one for one in checked("mcore=0.8.0 torch=2.4.1").failures if one.failure.id == SAVE]
    assert refuted
    assert not {*refuted} & {one.text for one in found.workarounds}


@pytest.mark.parametrize("text", STACKS)
def test_every_version_workaround_works(text: str) -> None:
    """And it brings no other known break."""
    before = checked(text)
    broken = {one.failure.id for one in before.failures if one.certain}
    for one in before.failures:
        for workaround in one.workarounds:
            if workaround.kind == "version" and " instead of " in workaround.text:
                name, _, rest = workaround.text.rpartition(" instead of ")[0].rpartition(" ")
                axis = {"megatron-core": "mcore", "Transformer Engine": "te", "torch": "torch"}[name]
                words = dict(word.split("=") for word in text.split() if axis != "torch" or "base" not in word)
                after = checked(" ".join(f"{key}={value}" for key, value in {**words, axis: rest}.items()))
                assert standing(after, one.failure.id) is Standing.WORKS
                assert {each.failure.id for each in after.failures if each.certain} <= broken


def test_upgrade_names_what_each_newer_version_changes() -> None:
    """The break of 2.9.0 is gone in every later release; nothing is judged twice."""
    asked = Question(upgrades=(TE, MCORE))
    te, core = checked("mcore=0.17.1 te=2.9.0 torch=2.9.1", asked, few(PINNED, TRANSFORMERS)).upgrades
    assert te.steps[0] == UpgradeStep("2.10.0", fixed=(PINNED,))
    assert [step.version for step in te.steps] == [
        version for version in recorded(real(), TE) if parse(version) > parse("2.9.0")
    ]
    assert te.may_take_newest == "yes"
    assert (core.steps[0].fixed, core.may_take_newest) == ((PINNED,), "unknown")


def test_upgrade_of_an_image_lists_every_newer_image() -> None:
    """Also those whose contents are not known, which are not taken; a break that no image affects blocks nothing."""
    (image,) = checked("base=ngc-24.02 mcore=0.8.0", Question(upgrades=(BASE,))).upgrades
    assert (image.steps[0].version, image.best and image.best.version) == ("ngc-24.03", "ngc-24.06")
    assert image.steps[-1].unknown
    assert {step.version: step.new for step in image.steps}["ngc-24.07"] == (SAVE,)


def test_break_beyond_a_component_is_apart() -> None:
    """pkg_resources breaks with megatron-core and setuptools alone."""
    (torch,) = checked("mcore=0.8.0 torch=2.3.1 setuptools=84.2.1", Question(upgrades=(TORCH,))).upgrades
    assert torch.apart == (SETUPTOOLS,)
    assert torch.steps[-1].blocking == (SAVE,)


def test_upgrade_of_an_unnamed_component_has_no_steps() -> None:
    (te,) = checked("mcore=0.8.0 torch=2.4.1", Question(upgrades=(TE,))).upgrades
    assert str(te) == "Transformer Engine: the stack names none"


def test_every_founding_report_is_found_from_its_stack() -> None:
    for failure in (SAVE, CALL, MASK, MPI):
        for reported in real().failure(failure).stack:
            cell = real().cell_named(reported.cell)
            axes = {"base": cell.base, **{short(name): str(cell.stack[name]) for name in (TORCH, MCORE, TE)}}
            left_out = "torch" if cell.base.startswith("ngc") else "base"
            words = " ".join(f"{axis}={one}" for axis, one in axes.items() if axis != left_out and one != "none")
            found = standing(checked(words), failure)
            assert found in (Standing.WILL_BREAK, Standing.WITH_OPTIONS), (failure, words)


def test_nothing_declared_is_an_empty_stack() -> None:
    stack, jobs = declared_stack(real(), Declared())
    assert (stack.named, jobs) == ([], ())
    assert BEHIND_MPI in {one.failure.id for one in check(real(), stack, Question(jobs), {}).of(Standing.WITH_VERSIONS)}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (None, "read by the project; none of its recorded nights reproduces it"),
        ({"cpu": 1}, "reproduced 1 time at level cpu in the project's night of 2026-01-02"),
        (
            {"contract": 41, "cpu": 17},
            "reproduced 41 times at level contract and 17 times at level cpu in the project's night of 2026-01-02",
        ),
    ],
)
def test_evidence_states_level_and_date(counts: dict[str, int] | None, expected: str) -> None:
    assert evidence_of(None if counts is None else ProjectNight("2026-01-02", counts)) == expected


def test_evidence_states_runs_on_a_gpu() -> None:
    night = ProjectNight("2026-01-02", {"cpu": 1}, (GpuRun("2026-01-01", "H100", holds=8),))
    assert evidence_of(night).endswith("night of 2026-01-02; on a GPU (H100, 2026-01-01) 0 reproduced, 8 held")


def test_recorded_night_is_that_of_the_folder(tmp_path: Path) -> None:
    entry = replace(real().failure(SAVE), folder=tmp_path)
    assert night_of(entry) is None
    (tmp_path / NIGHT_FILE).write_text('date = "2026-11-22"\nreproduced = { cpu = 16 }\n')
    assert night_of(entry) == ProjectNight("2026-11-22", {"cpu": 16})
    (tmp_path / GPU_FILE).write_text('[[run]]\ndate = "2026-11-27"\ngpu = "H100"\nreproduced = 2\n')
    assert night_of(entry) == ProjectNight("2026-11-22", {"cpu": 16}, (GpuRun("2026-11-27", "H100", 2),))
    assert night_of(real().failure(SAVE))
    assert all(night.reproduced for night in map(night_of, real().failures) if night)


@pytest.mark.parametrize(
    ("limits", "texts"),
    [
        (("numpy", ">=2"), []),
        (("numpy", ">=1.26"), [f"no exact version of numpy is stated, which decides {NUMPY}"]),
        (("numpy", "<2"), []),
        (("transformers", ""), [f"no exact version of transformers is stated, which decides {TRANSFORMERS}"]),
    ],
)
def test_version_that_decides_a_failure_is_unknown(limits: tuple[str, str], texts: list[str]) -> None:
    """A range whose versions are judged alike decides nothing."""
    said = [Statement(limits[0], UNKNOWN, Place("r.txt", 3), limits[1])]
    catalog = few(NUMPY, TRANSFORMERS)
    user = build(catalog, [*parse_text(catalog, "mcore=0.15.0 torch=2.9.1"), *said])
    unread = check(catalog, user, Question(), {}).unknown
    assert [item.text for item in unread] == texts


def test_torch_of_an_unknown_image_has_a_place() -> None:
    """A stack of another source than files and words states no places; its image stands for them."""
    result = check(real(), UserStack(Stack({BASE: "nemo-25.07", MCORE: "0.16.0"})), Question(), {})
    (item,) = result.unknown
    assert ("calls into torch" in item.text, item.place) == (True, COMMAND_LINE)
