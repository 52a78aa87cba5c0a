#include "isa_avx2.h"

#include "nhwc_kernels.inc"
