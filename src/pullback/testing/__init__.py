"""Checks that anyone can run on their own metric."""

from ._metric import check_metric as check_metric
