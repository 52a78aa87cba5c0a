#include "isa_baseline.h"

#include "normalization_kernels.inc"
