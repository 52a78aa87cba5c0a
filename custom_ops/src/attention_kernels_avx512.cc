#include "isa_avx512.h"

#include "attention_kernels.inc"
