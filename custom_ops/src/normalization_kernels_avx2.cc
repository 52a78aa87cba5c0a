#include "isa_avx2.h"

#include "normalization_kernels.inc"
