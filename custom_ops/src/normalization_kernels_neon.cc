#include "isa_neon.h"

#include "normalization_kernels.inc"
