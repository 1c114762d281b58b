"""Slurm's command lines and the parsing of their output. The outputs are those of Slurm 22.05."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.execution.slurm.client import REST, CommandOutput, Commands, Node, Task, call, of, spread, words

NO_FEATURE = "allocation failure: Invalid feature specification\n"
FINE = "sbatch: Job 3 to start at 2026-01-31T02:00:00 using 1 processors on nodes n535 in partition gpu\n"


class FakeSlurm:
    """Slurm with a fixed output for each program; `commands` are the calls it received."""

    def __init__(self, **outputs: CommandOutput) -> None:
        self.outputs, self.commands = outputs, []  # type: ignore[var-annotated]

    def __call__(self, command: Sequence[str], given: str, environ: Mapping[str, str] | None) -> CommandOutput:
        self.commands.append((list(command), given, environ))
        return self.outputs[command[0]]


def test_nodes_lists_each_node_once() -> None:
    """sinfo prints a node once for each of its partitions."""
    out = "n470|(null)|(null)|2|down*|4000\n" + "n535|driver535,h100|gpu:h100:8|128+|mixed|2000000+\n" * 2
    assert Commands(call=FakeSlurm(sinfo=CommandOutput(0, out, ""))).nodes() == [
        Node("n470", (), "(null)", 2, "down*", 4000),
        Node("n535", ("driver535", "h100"), "gpu:h100:8", 128, "mixed", 2_000_000),
    ]


@pytest.mark.parametrize(("state", "away"), [("drained", True), ("down*", True), ("idle~", False), ("mixed", False)])
def test_away_holds_for_drained_and_down_nodes(state: str, away: bool) -> None:
    """Slurm itself starts a node that is powered down (~)."""
    assert Node("n1", (), "", 1, state).away is away


def test_tasks_lists_array_tasks_with_the_prefix() -> None:
    out = "\n".join(
        (
            "megatrix-A-0001|12|3|RUNNING|n535|None",
            "megatrix-A-0001|12|4|PENDING||Resources",
            "megatrix-B-0001|13|0|RUNNING|n470|None",
            "megatrix-A-0001|12|N/A|CANCELLED||Resources",
            "wrap|14|N/A|RUNNING|n470|None",
        )
    )
    assert Commands(call=FakeSlurm(squeue=CommandOutput(0, out, ""))).tasks("megatrix-A-") == [
        Task("megatrix-A-0001", "12", 3, "RUNNING", "n535", "None"),
        Task("megatrix-A-0001", "12", 4, "PENDING", "", "Resources"),
        Task("megatrix-A-0001", "12", REST, "CANCELLED", "", "Resources"),
    ]


@pytest.mark.parametrize(
    ("text", "indexes"), [("3", [3]), ("3-5,8", [3, 4, 5, 8]), ("[0-2%4]", [0, 1, 2]), ("N/A", [REST])]
)
def test_spread_parses_index_ranges(text: str, indexes: list[int]) -> None:
    assert spread(text) == indexes


@pytest.mark.parametrize(("state", "live"), [("PENDING", True), ("COMPLETING", True), ("NODE_FAIL", False)])
def test_task_is_live_until_an_end_state(state: str, live: bool) -> None:
    assert Task("a", "1", 0, state, "", "").live is live


def test_refuses_returns_slurms_error_message() -> None:
    slurm = FakeSlurm(sbatch=CommandOutput(1, "", NO_FEATURE))
    assert Commands(("--account=me",), slurm).option_error(("--constraint=driver999",)) == words(NO_FEATURE)
    assert slurm.commands[0][0] == ["sbatch", "--test-only", "--constraint=driver999", "--account=me"]


def test_refuses_is_empty_if_a_node_fits() -> None:
    assert Commands(call=FakeSlurm(sbatch=CommandOutput(0, "", FINE))).option_error(()) == ""


def test_submit_passes_the_users_options_last() -> None:
    """sbatch uses the last of two options with one name: the user's."""
    slurm = FakeSlurm(sbatch=CommandOutput(0, "12;cluster\n", ""))
    assert Commands(("--time=5",), slurm).submit(("--time=90",), "#!/bin/sh\n", {"A": "b"}) == "12"
    assert slurm.commands == [(["sbatch", "--parsable", "--time=90", "--time=5"], "#!/bin/sh\n", {"A": "b"})]


def test_submit_raises_slurms_error_message() -> None:
    output = CommandOutput(1, "", "sbatch: error: Batch job submission failed: Invalid account\n")
    with pytest.raises(MatrixError, match="Batch job submission failed: Invalid account"):
        Commands(call=FakeSlurm(sbatch=output)).submit((), "", {})


def test_longest_is_one_below_max_array_size() -> None:
    out = "MailProg                = /bin/mail\nMaxArraySize            = 2001\nMaxDBDMsgs = 2\n"
    assert Commands(call=FakeSlurm(scontrol=CommandOutput(0, out, ""))).longest() == 2000


def test_unknown_partition_raises_with_the_known_ones() -> None:
    with pytest.raises(MatrixError, match=r"no such partition(.|\n)*gpuu(.|\n)*one of cpu, gpu"):
        of("gpuu", (), FakeSlurm(sinfo=CommandOutput(0, "cpu\ngpu\n", "")))


def test_known_partition_is_passed_to_sbatch() -> None:
    slurm = FakeSlurm(sinfo=CommandOutput(0, "cpu\ngpu\n", ""), sbatch=CommandOutput(0, "", FINE))
    of("gpu", ("--account=me",), slurm).option_error(())
    assert slurm.commands[-1][0] == ["sbatch", "--test-only", "--partition=gpu", "--account=me"]


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
def test_options_invalid_for_every_job_raise(err: str) -> None:
    slurm = FakeSlurm(sinfo=CommandOutput(0, "cpu\n", ""), sbatch=CommandOutput(1, "", err))
    with pytest.raises(MatrixError, match="--wrong: sbatch does not take these options") as caught:
        of("", ("--wrong",), slurm)
    assert str(words(err)) in str(caught.value)


@pytest.mark.parametrize("err", [NO_FEATURE, "allocation failure: Requested node configuration is not available\n"])
def test_options_that_lack_resources_do_not_raise(err: str) -> None:
    """A site may reject jobs without a GPU; each case reports by itself that no node can run it."""
    of("", ("--nodelist=n470",), FakeSlurm(sinfo=CommandOutput(0, "cpu\n", ""), sbatch=CommandOutput(1, "", err)))


@pytest.mark.parametrize(
    ("state", "reason", "stuck"),
    [("PENDING", "JobHeldAdmin", True), ("RUNNING", "JobHeldAdmin", False), ("PENDING", "Resources", False)],
)
def test_only_a_pending_held_task_is_stuck(state: str, reason: str, stuck: bool) -> None:
    """`scontrol hold` of an array sets the reason of its running tasks too (Slurm 22.05)."""
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
def test_end_contains_state_reason_and_node(task: Task, end: str) -> None:
    assert task.end == end


def test_missing_command_raises_with_its_name() -> None:
    with pytest.raises(MatrixError, match="no no-such-sbatch on PATH"):
        call(["no-such-sbatch"])


def test_unreachable_controller_raises_its_error_message() -> None:
    output = CommandOutput(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(MatrixError, match="Unable to contact slurm controller"):
        Commands(call=FakeSlurm(squeue=output)).tasks("megatrix-A-")


def test_words_joins_lines_without_program_names() -> None:
    text = "sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition name specified\n"
    expected = "invalid partition specified: nope; allocation failure: Invalid partition name specified"
    assert words(text) == expected
