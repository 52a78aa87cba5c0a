"""Chains, models and peers that are timed on the CPU: for scripts/bench.py and scripts/bench_cpu.py."""
