#include "isa_avx512.h"

#include "normalization_kernels.inc"
