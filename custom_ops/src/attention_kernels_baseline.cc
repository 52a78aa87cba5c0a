#include "isa_baseline.h"

#include "attention_kernels.inc"
