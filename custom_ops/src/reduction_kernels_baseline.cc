#include "isa_baseline.h"

#include "reduction_kernels.inc"
