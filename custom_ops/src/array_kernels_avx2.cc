#include "isa_avx2.h"

#include "array_kernels.inc"
