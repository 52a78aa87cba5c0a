#include "isa_baseline.h"

#include "channel_kernels.inc"
