#include "isa_avx2.h"

#include "attention_kernels.inc"
