#include "isa_avx2.h"

#include "channel_kernels.inc"
