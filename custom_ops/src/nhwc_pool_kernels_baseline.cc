#include "isa_baseline.h"

#include "nhwc_pool_kernels.inc"
