"""Shapes and the order of elements: the rules of the pass fold-shapes."""
