"""What upstream's history offers for a traceback, with the indexes that are checked in."""

from __future__ import annotations

from matrix.ask.history import CommitOffer, inferred, named_in, offered, original, positions, repairs_between, views
from matrix.ground.verdicts.outcome import Frame, Raised
from matrix.ground.verdicts.tracebacks import LoggedFrame
from matrix.read.history.index import histories

COMMON = "/env/site-packages/transformer_engine/common/__init__.py"
LOADS = 'return ctypes.CDLL(_get_shared_object_file("core"), mode=ctypes.RTLD_GLOBAL)'


def raised(line: int, source: str = LOADS, file: str = COMMON) -> Raised:
    return Raised("OSError", "undefined symbol", (LoggedFrame(file, line, "_load_core_library", source),))


def test_printed_lines_narrow_the_releases() -> None:
    """Line 300 is in the wheels of 2.6 and 2.7, line 317 in that of 2.4."""
    assert inferred([raised(300)]) == {"transformer-engine": ("2.6", "2.7")}
    assert "2.4" in inferred([raised(317)])["transformer-engine"]


def test_changed_line_is_of_no_release() -> None:
    assert inferred([raised(300, "return load_patched()")]) == {}
    assert inferred([raised(4_000_000)]) == {}
    assert inferred([raised(300, file="/env/mine.py")]) == {}


def test_frame_without_source_goes_by_function() -> None:
    """Numbers of lines alone infer nothing: beside a printed line, the function must stand there."""
    frame = Frame(COMMON, 300, "_load_core_library")
    assert inferred([Raised("OSError", "", (frame,))]) == {}
    printed = LoggedFrame(COMMON, 300, "_load_core_library", LOADS)
    assert inferred([Raised("OSError", "", (frame, printed))]) == {"transformer-engine": ("2.6", "2.7")}


def test_offers_are_later_than_the_release() -> None:
    offer = offered(raised(300), {}, inferred([raised(300)]))
    assert offer is not None
    assert offer.inferred
    assert offer.function == "transformer_engine/common/__init__.py:_load_core_library"
    assert 0 < len(offer.fixes) <= 3
    assert all("2.6" not in fix.commit.releases for fix in offer.fixes)
    assert offer.cause is None or "2.6" in offer.cause.commit.releases


def test_stated_version_goes_before_lines() -> None:
    offer = offered(raised(300), {"transformer-engine": {"2.7.0": None}}, {})
    assert offer is not None
    assert (offer.releases, offer.inferred) == (("2.7",), False)
    offer = offered(raised(300), {"transformer-engine": {"2.7.0": None}}, {"transformer-engine": ("2.7",)})
    assert offer is not None
    assert (offer.releases, offer.inferred) == (("2.7",), True)  # match takes a single one as if the log named it


def test_no_upstream_frame_has_no_history() -> None:
    assert offered(raised(1, file="/job/train.py"), {}, {}) is None
    assert positions([Frame("", 1, "load")]) == []


def test_error_of_a_program_has_no_history() -> None:
    """Megatron-LM calls the program's loss function: none of its commits mends that."""
    step = Frame("/env/megatron/core/pipeline_parallel/schedules.py", 286, "forward_step")
    own = Raised("IndexError", "too many indices", (step, Frame("/job/loss.py", 4, "loss_func")))
    library = Raised("IndexError", "too many indices", (step, Frame("/env/site-packages/torch/a.py", 4, "index")))
    assert [bool(offered(error, {}, {})) for error in (own, library)] == [False, True]


PLANNER = "/env/torch/distributed/checkpoint/default_planner.py"


def test_project_without_commits_is_known_by_release() -> None:
    """The innermost frame is of torch, so the fixes offered are those of Megatron-LM, the next project."""
    outer = Frame("/env/megatron/core/dist_checkpointing/strategies/torch.py", 461, "create_global_plan")
    inner = LoggedFrame(PLANNER, 391, "create_default_global_save_plan", "assert item.index.fqn not in md")
    raised = Raised("AssertionError", "", (outer, inner))
    assert "2.4.1" in inferred([raised])["torch"]
    stated = {"torch": {"2.4.1": None}, "megatron-core": {"0.8.0": None}}
    torch, megatron = (offered(view, stated, {}) for view in views(raised))
    assert torch is not None
    assert megatron is not None
    assert (torch.fixes, torch.changed_before, torch.changed_later) == ((), "2.1.0", ("2.7.0", "2.10.0"))
    assert "46ca0688e9" in [fix.commit.id for fix in megatron.fixes]
    assert repairs_between("torch", ("2.4.0", "2.4.1"), ["--bf16"]) is None


def test_message_is_gone_without_a_commit() -> None:
    raised = Raised("ValueError", "Failed to validate global plan", (Frame(PLANNER, 110, "create_global_plan"),))
    offer = offered(raised, {"torch": {"2.4.0": None}}, {})
    assert offer is not None
    assert offer.message == "gone from this file since 2.12.0"


def fixes(version: str, message: str, *frames: tuple[str, int, str]) -> list[str]:
    return [fix.commit.id for fix in fixes_of(version, message, *frames)]


def fixes_of(version: str, message: str, *frames: tuple[str, int, str]) -> tuple[CommitOffer, ...]:
    raised = Raised(
        "Error", message, tuple(Frame(f"/env/megatron/core/{file}", line, name) for file, line, name in frames)
    )
    offer = offered(raised, {"megatron-core": {version: None}}, {})
    assert offer is not None
    return offer.fixes


TE = "extensions/transformer_engine.py"


def test_other_functions_of_a_file_are_offered() -> None:
    """883533e049 changed TEGroupedLinear.__init__, and names use_grouped_tensor; the traceback has forward alone."""
    message = "one weight and one bias require use_grouped_tensor=True"
    assert fixes("0.19.2", message, (TE, 2430, "forward"))[0] == "883533e049"


def test_each_frame_of_the_four_innermost_counts() -> None:
    """db57c152e6 changed the outermost one, and its subject names nothing of the error."""
    inner = [("config.py", 1, "is_experimental_enabled")] * 3
    assert fixes("0.18.2", "", ("_rank_utils.py", 1, "log_single_rank"), *inner) == ["db57c152e6"]


def test_callee_that_the_message_names_is_offered() -> None:
    message = "GatedDeltaNet.__init__() got an unexpected keyword argument 'cp_comm_type'"
    assert fixes("0.18.2", message, ("transformer/spec_utils.py", 120, "build_module"))
    assert not fixes("0.18.2", "broken", ("transformer/spec_utils.py", 120, "build_module"))


def test_removed_function_goes_before_changed_ones() -> None:
    """07e958fc74, a refactoring, replaced the class that the message names."""
    message = "GatedDeltaNet.__init__() got an unexpected keyword argument 'cp_comm_type'"
    assert fixes("0.18.2", message, ("transformer/spec_utils.py", 120, "build_module"))[0] == "07e958fc74"


def test_commit_that_names_an_identifier_is_offered() -> None:
    """683895b3a6, "Fix TE version change on rope_fusion", changed other files."""
    message = "apply_rope_fusion is not available. Please install TE >= 1.4 or Apex."
    assert "683895b3a6" in fixes("0.11.0", message, ("transformer/transformer_config.py", 736, "__post_init__"))


def test_words_of_a_reason_are_in_one_order() -> None:
    """The order of a set differs between processes."""
    message = "ValueError: is_te_min_version, super and tensor"
    reasons = [offer.reason for offer in fixes_of("0.11.0", message, (TE, 2430, "forward"))]
    assert "it is about ValueError, is_te_min_version, tensor" in reasons


def test_commit_of_an_older_branch_is_no_fix() -> None:
    """143f353690 is in 0.10.0 alone."""
    offer = fixes(
        "0.12.3", "MegatronModule()", ("distributed/distributed_data_parallel.py", 350, "disable_forward_pre_hook")
    )
    assert offer
    assert "143f353690" not in offer


PARALLEL = "/env/transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py"


def test_message_of_a_renamed_function_is_not_gone() -> None:
    """v2.8 and v2.18 raise it in other functions."""
    message = "thd format is not supported with hierarchical CP implementation yet!"
    raised = Raised("AssertionError", message, (Frame(PARALLEL, 3708, "attn_forward_func_with_cp"),))
    offer = offered(raised, {"transformer-engine": {"2.8": None}}, {})
    assert offer is not None
    assert offer.message.startswith("gone from this file since 2.19")


def test_package_of_a_folder_has_its_history() -> None:
    """PyPI's megatron-fsdp has the files of megatron/core/distributed/fsdp/src."""
    (position,) = positions(
        [Frame("/env/site-packages/megatron_fsdp/param_and_grad_buffer.py", 1, "update_main_grads")]
    )
    assert position.path == "megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py"


def test_fix_is_later_than_the_earliest_release() -> None:
    """5ab481cb45, of 0.16.0, brought the message: it is no fix."""
    message = f"ShardedTensor.flattened{'_'}range is not supported."  # as one word it is the folder of an entry
    file = "/fork/megatron/core/dist_checkpointing/mapping.py"
    offer = offered(Raised("CheckpointingException", message, (Frame(file, 9, "validate_metadata_integrity"),)), {}, {})
    assert offer is not None
    assert (offer.releases, offer.earliest) == ((), "0.16.0")
    assert "5ab481cb45" not in [fix.commit.id for fix in offer.fixes]


def test_line_of_a_long_function_shows_no_release() -> None:
    """The line is in no release: seven others of 0.17.0 have its hash, of 8 bits."""
    source = "args.main_grads_dtype = dtype_map[args.main_grads_dtype]"
    frame = LoggedFrame("/job/Megatron-LM/megatron/training/arguments.py", 405, "validate_args", source)
    offer = offered(Raised("KeyError", "torch.float32", (frame,)), {}, {})
    assert offer is not None
    assert offer.earliest == ""
    assert offer.fixes[0].commit.id == "4d4621ba08"


def test_function_that_no_commit_has_is_not_compared() -> None:
    """The other functions of its file are of other releases."""
    file = "/fork/megatron/core/transformer/utils.py"
    offer = offered(Raised("KeyError", "None", (Frame(file, 330, "of_a_fork"),)), {}, {})
    assert offer is not None
    assert offer.fixes == ()


def test_argument_error_has_the_history_of_its_caller() -> None:
    """23dd639cf3 of Megatron-LM mended what Transformer Engine's optimizer was given."""
    frames = (
        Frame("/env/megatron/core/optimizer/distrib_optimizer.py", 901, "_set_main_param_and_optimizer_states"),
        Frame("/env/transformer_engine/pytorch/optimizers/fused_adam.py", 261, "set_scaled_state"),
    )
    error = Raised("AttributeError", "'bool' object has no attribute 'dtype'", frames)
    caller = [offered(view, {"megatron-core": {"0.15.0": None}}, {}) for view in views(error)][1]
    assert caller is not None
    assert "23dd639cf3" in [fix.commit.id for fix in caller.fixes]
    assert len([*views(Raised("RuntimeError", "", frames))]) == 1


def test_copies_of_a_commit_count_once() -> None:
    assert original("cp: `Fix load (3890)` into `core_r0.18.0` (#5126)") == original("Fix load (#3890)")
    assert original("ADLR/megatron-lm!4052 - Cherry pick `Add x (4038)` into") == original(
        "ADLR/megatron-lm!4038 - Add x"
    )


def test_tool_of_an_unreleased_commit_is_known() -> None:
    """No release has its line; a program's own folder of that name has other functions."""
    path = "/job/tools/checkpoint/checkpoint_inspector.py"
    assert positions([Frame(path, 702_000, "convert_checkpoint")])
    assert not positions([Frame(path, 702_000, "my_own")])


def test_text_names_commits_by_id_and_number() -> None:
    named = [(history.component, commit.id) for history, commit in named_in("1284d25e12, Megatron-Bridge#4354")]
    assert named == [("megatron-core", "1284d25e12"), ("megatron-bridge", "dabf51d9d5")]


def test_indexes_state_what_they_know() -> None:
    assert all(history.until >= "2026-08-22" and history.releases for history in histories())
