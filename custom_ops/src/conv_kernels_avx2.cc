#include "isa_avx2.h"

#include "conv_kernels.inc"
