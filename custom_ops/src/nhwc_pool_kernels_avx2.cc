#include "isa_avx2.h"

#include "nhwc_pool_kernels.inc"
