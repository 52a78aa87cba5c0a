#include "isa_neon.h"

#include "kernels.inc"
