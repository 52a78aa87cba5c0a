"""Matrix products with constant weights: what they have in common, and where their biases are added."""
