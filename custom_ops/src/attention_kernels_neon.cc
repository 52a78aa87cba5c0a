#include "isa_neon.h"

#include "attention_kernels.inc"
