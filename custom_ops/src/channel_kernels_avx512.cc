#include "isa_avx512.h"

#include "channel_kernels.inc"
