#include "isa_neon.h"

#include "channel_kernels.inc"
