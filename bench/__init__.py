"""Benchmarks: what the connector costs beside a loop that does nothing, in one run, alternating, medians.

`make bench-smoke` runs `bench.smoke`; docs/benchmarks.md holds the figures with their conditions.
"""
