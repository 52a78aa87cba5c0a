#include "isa_avx2.h"

#include "kernels.inc"
