"""Measurements beside baselines that run in the same minutes: `python -m tests.benchmarks --help`.

Never part of the pass/fail tests. A round runs every variant of a target once, for a few seconds each; rounds repeat in
alternating order. A ratio is the median of the ratios of the rounds.
"""
