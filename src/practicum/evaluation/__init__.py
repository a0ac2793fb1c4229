"""Evaluation: panels, results, comparisons, statistics, plots."""
