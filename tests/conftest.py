"""Every test runs in float64, with strict promotion of dtypes and ranks, from fixed seeds."""

import datetime
import itertools
import os
from importlib.metadata import version
from pathlib import Path

# Compiling takes nearly all of the time here, and what is compiled runs for a millisecond: do not
# optimise it. The older generator of loops takes two thirds of the time of the newer one; XLA ends
# the process at a flag that it does not know.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    + " --xla_cpu_use_fusion_emitters=false" * (version("jaxlib") < "0.11.1"),
)
# Before NumPy is imported: the threads of LAPACK fight with those of the other workers (see the
# Makefile).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
import pytest
from sampling import seed, taken

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# Files whose parametrised tests run, by default, on one of n of their cases: another one with each
# seed (`sampling.py`); and tests of theirs that are not like the others. `make test-all` runs all.
THINNED = {
    "test_agreement": 10,
    "test_bad_input": 2,
    "test_bench": 4,
    "test_block_descent": 2,
    "test_blocks": 6,
    "test_certificate": 16,
    "test_certificate_fails": 8,
    "test_claims": 24,
    "test_complex": 4,
    "test_complex_factors": 2,
    "test_complex_geometry": 4,
    "test_complex_steps": 3,
    "test_constrained": 2,
    "test_contracts": 14,
    "test_covariance": 4,
    "test_cut": 6,
    "test_depth": 2,
    "test_derivative": 18,
    "test_differentiated_steps": 2,
    "test_other_problems": 2,
    "test_steps_are_those_of_one_device": 5,
    "test_training_is_sharded_in_and_out_and_resumes": 2,
    "test_every_metric_agrees": 4,
    "test_examples": 6,
    "test_fields": 2,
    "test_filters": 14,
    "test_flow": 4,
    "test_found": 3,
    "test_gauge": 15,
    "test_glm": 2,
    "test_holomorphic": 8,
    "test_indefinite": 4,
    "test_invariance": 4,
    "test_iterative_solvers_agree": 3,
    "test_kernel": 8,
    "test_lapack": 3,
    "test_likelihood": 6,
    "test_log_loss": 2,
    "test_logistic": 2,
    "test_matrix_product": 2,
    "test_measure": 24,
    "test_messages": 2,
    "test_metric_batch": 4,
    "test_metrics": 3,
    "test_mixed": 3,
    "test_natural_gradient": 6,
    "test_optax_face": 2,
    "test_preconditioner": 6,
    "test_proximal": 4,
    "test_pullback_metric": 16,
    "test_recompiling": 2,
    "test_rows": 6,
    "test_rules": 24,
    "test_samplers": 2,
    "test_saturation": 8,
    "test_scores": 3,
    "test_sharded_leaves_have_the_answer_of_one_device": 4,
    "test_shown": 2,
    "test_solver": 6,
    "test_stateful": 3,
    "test_stateful_gradient": 24,
    "test_stateful_step": 6,
    "test_steep": 10,
    "test_tangent_kernel": 8,
    "test_targets": 3,
    "test_targets_alone": 3,
    "test_theorems": 2,
    "test_validate": 3,
    "test_uneven_problems": 7,
    "test_uneven_samples": 15,
    "test_uneven_training": 8,
    "test_walk": 8,
    "test_without_loss": 2,
    "test_xla": 2,
}

# Tests that take long, of which a default run makes every fourth, others with each seed.
SELDOM = (
    "test_a_claimed_rank_of_zero_excuses_nothing",
    "test_a_converged_least_squares_problem_ends_by_itself",
    "test_a_direction_below_the_resolution_may_be_missing",
    "test_a_filter_of_the_kernel_passes_at_a_condition_of_1e6",
    "test_a_flow_an_examination_and_invariance_on_noise",
    "test_a_good_start_saves_products",
    "test_a_scalar_loss_is_taken_as_it_is",
    "test_a_small_equation_is_solved",
    "test_a_small_memory",
    "test_a_wrong_offset_in_theorem_3",
    "test_absent_samples_and_weights_in_the_structured_route",
    "test_absent_samples_do_not_enter",
    "test_affine_maps_are_exact_unless_the_gauge_is_not_carried_over",
    "test_an_absent_sample_reaches_no_derivative",
    "test_an_equinox_network_that_saturates",
    "test_blocks_by_a_function_and_by_beginnings_of_paths",
    "test_derivative_in_the_batch_the_damping_and_the_gauge",
    "test_every_reader_uses_the_outputs_at_the_given_state",
    "test_gaussian_fisher_at_the_standard_normal",
    "test_invariance_of_a_method_on_a_model_with_state",
    "test_it_computes_what_the_chosen_solver_computes",
    "test_kernels_are_their_definitions_and_the_discrete_ones_tend_to_them",
    "test_kronecker_factors_undo_the_scales_of_the_inputs",
    "test_krylov_products_are_counted",
    "test_logistic_with_more_parameters_than_samples_follows_its_closed_form",
    "test_more_values_than_outputs_against_the_dense_reference",
    "test_observed_information_is_the_hessian_of_the_loss",
    "test_parameters_that_are_not_identifiable_are_infinite_and_estimable_functions_finite",
    "test_probabilities_that_do_not_sum_to_one_are_refused_with_the_sum",
    "test_records_draw_on_given_axes",
    "test_remark_2_another_parametrisation_is_another_inner_product",
    "test_rows_of_many_positions_are_kept_for_products",
    "test_second_derivatives_through_a_rule_of_its_own",
    "test_steep_samples_and_dampings_below_rounding",
    "test_steep_samples_in_every_context",
    "test_the_alignment_where_nothing_is_known_of_it",
    "test_the_estimate_of_a_fit_has_the_spread_of_repeated_ones",
    "test_the_kernel_product_is_that_of_the_kernel",
    "test_the_limit_is_not_the_largest_margin",
    "test_training_and_examining_with_complex_targets",
    "test_training_on_noise",
    "test_vectors_and_covectors_know_which_they_are",
    "test_weight_zero_in_a_saturating_family_and_matrix_free",
    "test_what_a_kernel_depends_on_and_how_it_prints",
    "test_what_a_singular_metric_does_not_see_is_not_invariant",
    "test_what_is_solved_for_together_is_the_sum",
    "test_what_leaks_into_the_kernel_of_tied_parameters_fails",
    "test_wrappers_that_work",
)


def pytest_terminal_summary(terminalreporter):
    day = os.environ.get("SEED") or f"{datetime.date.today():%Y%m%d}"
    terminalreporter.line(f"Samples of the registries: SEED={seed()}. Fuzzed: SEED={day}.")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    seen = {}
    for item in items:
        name = getattr(item, "originalname", "")
        if name in SELDOM and not taken(SELDOM.index(name), 4, seed()):
            item.add_marker(pytest.mark.slow)
        every = THINNED.get(name, THINNED.get(item.path.stem))
        if every is None or not hasattr(item, "callspec"):
            continue
        test = item.path, item.originalname
        place = seen[test] = seen.get(test, -1) + 1
        if not taken(place, every, seed()):
            item.add_marker(pytest.mark.slow)


MAPS, EVERY, MANY = Path("/proc/self/maps"), 2, 15_000
_finished = itertools.count(1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Linux allows a process 65 530 mappings, XLA makes some for every program, and the first that
    is refused is a segmentation fault: forget the programs in time.
    """
    if next(_finished) % EVERY == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY:
        jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def eager():
    """Operation by operation: each is compiled once for all the cases of a shape."""
    with jax.disable_jit():
        yield
