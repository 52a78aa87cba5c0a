#include "isa_avx2.h"

#include "double_kernels.inc"
