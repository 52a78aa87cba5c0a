#include "isa_avx512.h"

#include "conv_kernels.inc"
