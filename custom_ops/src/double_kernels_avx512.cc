#include "isa_avx512.h"

#include "double_kernels.inc"
