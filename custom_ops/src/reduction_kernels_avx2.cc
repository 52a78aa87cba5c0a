#include "isa_avx2.h"

#include "reduction_kernels.inc"
