"""Programs in examples/, and what they include."""
