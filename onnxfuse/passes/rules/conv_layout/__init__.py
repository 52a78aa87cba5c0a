"""What lies between convolutions: the rules of the pass conv-layout."""
