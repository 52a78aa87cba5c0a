"""Is the optimized model equal to the original: inputs, runs, comparisons."""
