#include "isa_avx512.h"

#include "nhwc_kernels.inc"
