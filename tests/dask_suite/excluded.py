"""Dask's own tests that cannot pass when tasks run in other processes than the test, each with its reason."""

WARNS = "expects a warning in the test's own process; it is raised in a worker, which shows it"
SAME_OBJECT = "expects to get the very object that it has given, not a copy"
LAZY = "gives a generator to a task or gets one from it, which cannot be pickled"
COUNTS = "counts calls in the test's own process; they happen in a worker"
CONFIGURATION = "changes Dask's configuration, which each process has for itself, and a task reads it"

EXCLUDED = {
    "tests.test_delayed::test_traverse_false": SAME_OBJECT,
    "tests.test_delayed::test_callable_obj": SAME_OBJECT,
    "bag.tests.test_bag::test_take_npartitions_warn": WARNS,
    "bag.tests.test_bag::test_from_delayed_iterator": LAZY,
    "bag.tests.test_bag::test_repartition_partition_size_complex_dtypes": SAME_OBJECT,
    "bag.tests.test_bag::test_bag_with_single_callable": SAME_OBJECT,
    "bag.tests.test_bag::test_to_delayed_optimize_graph": COUNTS,
    "bag.tests.test_bag::test_reductions_are_lazy": LAZY,
    "array.tests.test_reductions::test_array_cumreduction_axis[blelloch-None-False-cumprod]": WARNS,
    "array.tests.test_reductions::test_array_cumreduction_axis[blelloch-None-False-nancumprod]": WARNS,
    "array.tests.test_reductions::test_array_cumreduction_axis[blelloch-None-True-cumprod]": WARNS,
    "array.tests.test_reductions::test_array_cumreduction_axis[blelloch-None-True-nancumprod]": WARNS,
    "array.tests.test_reductions::test_nanquantile_all_nan": WARNS,
    "dataframe.tests.test_shuffle::test_disk_shuffle_with_unknown_compression": CONFIGURATION,
}
"""Module and test (without parameters: all of them) -> why."""

AT_TIMES = {"bag.tests.test_bag::test_from_delayed_iterator"}
"""Tests that fail, and pass now and then. The tasks have random names. Their order decides which of them Dask makes into
one, and by that whether a generator is handed on."""
