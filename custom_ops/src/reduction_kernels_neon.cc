#include "isa_neon.h"

#include "reduction_kernels.inc"
