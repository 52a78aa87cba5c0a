"""What the commands of scripts/ are made of."""
