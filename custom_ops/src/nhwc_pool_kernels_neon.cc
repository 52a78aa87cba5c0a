#include "isa_neon.h"

#include "nhwc_pool_kernels.inc"
