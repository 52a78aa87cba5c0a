#include "isa_baseline.h"

#include "conv_kernels.inc"
