"""What is asked of Slurm, and how its answers are read. The answers are those of Slurm 22.05."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from matrix.errors import MatrixError
from matrix.execution.slurm.commands import REST, CommandOutput, Commands, Node, Task, call, of, spread, words

NO_FEATURE = "allocation failure: Invalid feature specification\n"
FINE = "sbatch: Job 3 to start at 2026-01-31T02:00:00 using 1 processors on nodes n535 in partition gpu\n"


class Asked:
    """Slurm as far as a test goes: `answers` by program; `commands` are what it was asked."""

    def __init__(self, **answers: CommandOutput) -> None:
        self.answers, self.commands = answers, []  # type: ignore[var-annotated]

    def __call__(self, command: Sequence[str], given: str, environ: Mapping[str, str] | None) -> CommandOutput:
        self.commands.append((list(command), given, environ))
        return self.answers[command[0]]


def test_nodes_are_told_once_with_features_and_gpus() -> None:
    """sinfo names a node for each of its partitions."""
    out = "n470|(null)|(null)|2|down*\n" + "n535|driver535,h100|gpu:h100:8|128+|mixed\n" * 2
    assert Commands(call=Asked(sinfo=CommandOutput(0, out, ""))).nodes() == [
        Node("n470", (), "(null)", 2, "down*"),
        Node("n535", ("driver535", "h100"), "gpu:h100:8", 128, "mixed"),
    ]


@pytest.mark.parametrize(("state", "away"), [("drained", True), ("down*", True), ("idle~", False), ("mixed", False)])
def test_a_node_is_away_until_a_person_lets_it_work(state: str, away: bool) -> None:
    """One that is powered down (~) Slurm starts by itself."""
    assert Node("n1", (), "", 1, state).away is away


def test_the_tasks_of_a_run_are_found_by_their_name() -> None:
    out = "\n".join(
        (
            "megatrix-A-0001|12|3|RUNNING|n535|None",
            "megatrix-A-0001|12|4|PENDING||Resources",
            "megatrix-B-0001|13|0|RUNNING|n470|None",
            "megatrix-A-0001|12|N/A|CANCELLED||Resources",
            "wrap|14|N/A|RUNNING|n470|None",
        )
    )
    assert Commands(call=Asked(squeue=CommandOutput(0, out, ""))).tasks("megatrix-A-") == [
        Task("megatrix-A-0001", "12", 3, "RUNNING", "n535", "None"),
        Task("megatrix-A-0001", "12", 4, "PENDING", "", "Resources"),
        Task("megatrix-A-0001", "12", REST, "CANCELLED", "", "Resources"),
    ]


@pytest.mark.parametrize(
    ("text", "indexes"), [("3", [3]), ("3-5,8", [3, 4, 5, 8]), ("[0-2%4]", [0, 1, 2]), ("N/A", [REST])]
)
def test_tasks_that_wait_are_told_in_ranges_and_cancelled_ones_in_one_line(text: str, indexes: list[int]) -> None:
    assert spread(text) == indexes


@pytest.mark.parametrize(("state", "live"), [("PENDING", True), ("COMPLETING", True), ("NODE_FAIL", False)])
def test_a_task_may_run_until_slurm_says_that_it_ended(state: str, live: bool) -> None:
    assert Task("a", "1", 0, state, "", "").live is live


def test_what_no_node_can_run_is_refused_in_slurms_words() -> None:
    asked = Asked(sbatch=CommandOutput(1, "", NO_FEATURE))
    assert Commands(("--account=me",), asked).refuses(("--constraint=driver999",)) == words(NO_FEATURE)
    assert asked.commands[0][0] == ["sbatch", "--test-only", "--constraint=driver999", "--account=me"]


def test_what_some_node_can_run_is_not_refused() -> None:
    assert Commands(call=Asked(sbatch=CommandOutput(0, "", FINE))).refuses(()) == ""


def test_a_job_is_submitted_with_its_script_and_the_users_options_last() -> None:
    """Of two options of one name sbatch takes the last: the user's."""
    asked = Asked(sbatch=CommandOutput(0, "12;cluster\n", ""))
    assert Commands(("--time=5",), asked).submit(("--time=90",), "#!/bin/sh\n", {"A": "b"}) == "12"
    assert asked.commands == [(["sbatch", "--parsable", "--time=90", "--time=5"], "#!/bin/sh\n", {"A": "b"})]


def test_a_job_that_is_refused_is_an_error_in_slurms_words() -> None:
    said = CommandOutput(1, "", "sbatch: error: Batch job submission failed: Invalid account\n")
    with pytest.raises(MatrixError, match="Batch job submission failed: Invalid account"):
        Commands(call=Asked(sbatch=said)).submit((), "", {})


def test_the_longest_array_is_the_clusters() -> None:
    out = "MailProg                = /bin/mail\nMaxArraySize            = 2001\nMaxDBDMsgs = 2\n"
    assert Commands(call=Asked(scontrol=CommandOutput(0, out, ""))).longest() == 2000


def test_a_partition_that_is_not_there_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(MatrixError, match=r"no such partition(.|\n)*gpuu(.|\n)*one of cpu, gpu"):
        of("gpuu", (), Asked(sinfo=CommandOutput(0, "cpu\ngpu\n", "")))


def test_a_partition_that_is_there_goes_to_sbatch() -> None:
    asked = Asked(sinfo=CommandOutput(0, "cpu\ngpu\n", ""), sbatch=CommandOutput(0, "", FINE))
    of("gpu", ("--account=me",), asked).refuses(())
    assert asked.commands[-1][0] == ["sbatch", "--test-only", "--partition=gpu", "--account=me"]


@pytest.mark.parametrize(
    "err",
    [
        "sbatch: unrecognized option '--no-such-option'\nTry \"sbatch --help\" for more information\n",
        "sbatch: error: Invalid --time specification\n",
        "sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition name specified\n",
        "allocation failure: Invalid node name specified\n",
        "allocation failure: Invalid account or account/partition combination specified\n",
    ],
)
def test_an_option_that_no_job_may_have_is_an_error_before_anything_is_submitted(err: str) -> None:
    asked = Asked(sinfo=CommandOutput(0, "cpu\n", ""), sbatch=CommandOutput(1, "", err))
    with pytest.raises(MatrixError, match="--wrong: sbatch does not take these options") as caught:
        of("", ("--wrong",), asked)
    assert str(words(err)) in str(caught.value)


@pytest.mark.parametrize("err", [NO_FEATURE, "allocation failure: Requested node configuration is not available\n"])
def test_an_option_that_leaves_too_little_for_a_bare_job_may_do_for_another(err: str) -> None:
    """A site may refuse what asks for no GPU; which cases find no node is said case by case."""
    of("", ("--nodelist=n470",), Asked(sinfo=CommandOutput(0, "cpu\n", ""), sbatch=CommandOutput(1, "", err)))


@pytest.mark.parametrize(
    ("state", "reason", "stuck"),
    [("PENDING", "JobHeldAdmin", True), ("RUNNING", "JobHeldAdmin", False), ("PENDING", "Resources", False)],
)
def test_only_a_task_that_does_not_run_waits_for_a_person(state: str, reason: str, stuck: bool) -> None:
    """`scontrol hold` of an array gives its running tasks the reason too (Slurm 22.05)."""
    assert Task("a", "1", 0, state, "", reason).stuck is stuck


@pytest.mark.parametrize(
    ("task", "end"),
    [
        (Task("a", "8", 0, "TIMEOUT", "n470", "TimeLimit"), "Slurm task 8_0 ended TIMEOUT on n470"),
        (
            Task("a", "8", 1, "CANCELLED", "", "JobHeldAdmin"),
            "Slurm task 8_1 ended CANCELLED (JobHeldAdmin) on no node",
        ),
    ],
)
def test_the_end_of_a_task_says_what_it_waited_for(task: Task, end: str) -> None:
    assert task.end == end


def test_where_slurm_is_not_the_error_says_so() -> None:
    with pytest.raises(MatrixError, match="no sbatch-that-is-not-here on PATH"):
        call(["sbatch-that-is-not-here"])


def test_a_controller_that_is_away_is_an_error_in_its_words() -> None:
    said = CommandOutput(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(MatrixError, match="Unable to contact slurm controller"):
        Commands(call=Asked(squeue=said)).tasks("megatrix-A-")


def test_words_are_one_line_without_the_programs_name() -> None:
    text = "sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition name specified\n"
    said = "invalid partition specified: nope; allocation failure: Invalid partition name specified"
    assert words(text) == said
