#include "isa_baseline.h"

#include "nhwc_kernels.inc"
