#include "isa_avx512.h"

#include "reduction_kernels.inc"
