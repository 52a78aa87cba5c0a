#include "isa_neon.h"

#include "array_kernels.inc"
