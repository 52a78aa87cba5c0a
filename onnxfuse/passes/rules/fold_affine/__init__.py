"""Affine steps folded into what is linear in their data: the rules of the pass fold-affine, and what they read."""
