#include "isa_baseline.h"

#include "array_kernels.inc"
