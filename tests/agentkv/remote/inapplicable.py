"""Which tests of the SDK cannot apply over a server, by name and why: see `AGENTKV_TESTS_OVER` in tests/agentkv."""

from __future__ import annotations

HERE = "passes objects of this process into the step loop"
STEPS = "counts or waits for forwards, which are the server's"
CELLS = "is about the cells of a cache, which are the server's"
CUT = "goes on with an output that was cut, which no server does"
FAULTS = "makes forwards of this process fail"
FAST = "counts how often tokens wake a turn, which arrive as the network has it"
BITS = "compares bits, or draws that follow from them"
END = "has no token behind an output that is complete, where vLLM has an end"
LOCAL = "opens the model in this process, with options of its own"

# Modules and tests.
EVERYWHERE: dict[str, str] = {
    # all of these modules
    "test_blocked_strategy": HERE,
    "test_spec": HERE,
    "test_spec_eagle": HERE,
    "test_spec_heads": HERE,
    "test_spec_mtp": HERE,
    "test_spec_output": HERE,
    "test_coalescing": STEPS,
    "test_branch_of_a_turn": CELLS,
    "test_forgetting": CELLS,
    "test_retention": CELLS,
    # test_asyncio, test_branch, test_context
    "test_gather_shares_the_forwards": STEPS,
    "test_select_scores_every_choice_and_changes_nothing": STEPS,
    "test_model_info_and_tokenizer": LOCAL,
    "test_a_prompt_that_a_live_branch_holds_is_not_computed_again": STEPS,
    "test_statistics_count_what_happened": STEPS,
    "test_branches_of_two_contexts_do_not_mix": LOCAL,
    "test_steps_show_what_was_merged": STEPS,
    "test_leaving_ends_everything": LOCAL,
    # test_faults
    "test_a_full_context_refuses_and_keeps_what_was": CELLS,
    "test_one_prompt_too_many_fails_alone": CELLS,
    "test_the_257th_branch_is_refused": CELLS,
    "test_a_fork_that_is_too_wide_says_how_many_are_live": CELLS,
    "test_a_forward_that_fails_ends_its_own_verb": STEPS,
    # test_generation, test_messages, test_leaving, test_penalties, test_typed_output
    "test_a_full_context_ends_one_branch_alone": CELLS,
    "test_a_fork_during_an_extend_has_the_messages_that_are_whole": STEPS,
    "test_leaving_at_random_moments": HERE,
    "test_a_loop_of_ones_own_says_the_same": HERE,
    "test_the_likeliest_tokens_are_the_models_own": HERE,
    "test_drafts_change_nothing": HERE,
    # test_overflow
    "test_the_oldest_go_for_whatever_needs_cells": CELLS,
    "test_streams_make_room_as_they_are_read": CELLS,
    "test_who_waits_for_room_holds_up_nobody": CELLS,
    "test_nothing_goes_that_makes_no_room": CELLS,
    "test_what_made_room_stays_forgotten": CELLS,
    # test_quantize_after
    "test_a_shared_cell_stays_for_the_branch_that_has_it_newest": CELLS,
    "test_compaction_changes_no_bit": CELLS,
    "test_files_are_of_contexts_that_quantise": CELLS,
    "test_verbs_compose": HERE,
    # agents
    "test_a_full_cache_ends_the_turn": CELLS,
    "test_the_prompt_is_prefilled_once": STEPS,
    "test_a_helper_costs_no_prefill_of_what_is_known": STEPS,
    "test_what_was_kept_of_a_message_that_nobody_listened_to_is_the_text": HERE,
    "test_a_turn_that_nobody_listens_to_is_woken_where_a_call_may_end": FAST,
}


# Over vLLM alone, which is not exact to the bit, whose tiny model has other weights, and whose room and forwards are
# out of reach.
OVER_VLLM: dict[str, str] = {
    "test_quantize_after": CELLS,
    "test_a_rolled_back_branch_repeats_its_draws": BITS,
    "test_generation_enters_the_history": BITS,
    "test_text_that_may_begin_a_stop_string_is_held_back": BITS,
    "test_a_hugging_face_folder_runs_on_torch": BITS,
    "test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded": CELLS,
    "test_a_refused_value_of_a_stream_stays_on_the_branch": END,
    "test_beside_tools_a_message_is_calls_or_the_value": BITS,
    "test_an_output_that_was_cut_goes_on": CUT,
    "test_an_output_may_be_cut_inside_a_character": CUT,
    "test_a_cancelled_prefill_leaves_the_branch_as_it_was": STEPS,
    "test_a_cancelled_first_prefill_leaves_no_branch": STEPS,
    # test_overflow
    "test_without_a_policy_nothing_goes": CELLS,
    "test_a_policy_that_refuses_lies_or_fails": CELLS,
    "test_one_that_is_cancelled_while_room_is_made": CELLS,
    "test_what_a_policy_does_on_its_branch_asks_nobody": CELLS,
    "test_a_read_that_is_cancelled_while_room_is_made": CELLS,
    "test_outputs_that_are_done_give_way_and_those_under_way_do_not": CELLS,
    "test_what_a_room_refuses": CELLS,
    "test_policies_that_are_none": CELLS,
    # test_faults, test_stream_keep, test_turns, test_random_turns
    "test_a_merged_forward_that_fails_is_retried_one_by_one": FAULTS,
    "test_what_failed_after_what_was_read_never_was": FAULTS,
    "test_a_forward_that_fails_ends_the_turn": FAULTS,
    "test_turns_are_transactions_whatever_happens": FAULTS,
}


DRAFTS = ("-lookup]", "-suffix]", "-random]")  # parameters of tests that run with strategies as well


def reason(over: str, module: str, name: str) -> str | None:
    """Why it cannot apply; None where it does. `name` is with the parameters."""
    names = (module, name.partition("[")[0])
    if module == "test_stream_keep" and name.endswith(DRAFTS):
        return HERE
    lists = (EVERYWHERE, OVER_VLLM) if over == "vllm" else (EVERYWHERE,)
    return next((known[name] for known in lists for name in names if name in known), None)
