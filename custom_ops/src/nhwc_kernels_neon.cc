#include "isa_neon.h"

#include "nhwc_kernels.inc"
