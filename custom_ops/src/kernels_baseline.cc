#include "isa_baseline.h"

#include "kernels.inc"
