#include "isa_baseline.h"

#include "double_kernels.inc"
