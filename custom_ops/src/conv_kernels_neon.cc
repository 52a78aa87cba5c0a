#include "isa_neon.h"

#include "conv_kernels.inc"
