#include "isa_avx512.h"

#include "array_kernels.inc"
