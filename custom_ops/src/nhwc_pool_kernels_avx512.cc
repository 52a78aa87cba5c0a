#include "isa_avx512.h"

#include "nhwc_pool_kernels.inc"
