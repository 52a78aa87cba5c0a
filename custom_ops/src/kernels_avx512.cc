#include "isa_avx512.h"

#include "kernels.inc"
