#!/usr/bin/env bash
# From a fresh clone to a faster model: sets up .venv, fetches a text detector, optimizes and checks it, and times it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

name="ch_PP-OCRv4_det"
shape="x=1x3x640x640"
optimized="$root/build/$name.fused.onnx"

echo "1. Setting up .venv"
set_up cpu
echo "2. Fetching $name"
model="$("$venv/bin/onnxfuse" zoo fetch "$name")"
echo "3. Optimizing and checking it"
mkdir -p "$root/build"
"$venv/bin/onnxfuse" optimize "$model" "$optimized" --shape "$shape"
echo "4. Timing the original and the optimized model in turns"
"$venv/bin/onnxfuse" bench "$model" "$optimized" --shape "$shape" --threads 2
echo "The optimized model is build/$name.fused.onnx"
