#include "isa_neon.h"

#include "double_kernels.inc"
