"""From CUDA source to machine code: the compilers, what they say, and the cache in front of them."""
