"""Is the optimized model equal to the original: inputs, runs, comparisons, and float64 to hold a result against."""
