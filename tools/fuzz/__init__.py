"""Random models, and what becomes of them: for scripts/fuzz.py."""
