"""The engine of rules: patterns, matches, rewrites."""
