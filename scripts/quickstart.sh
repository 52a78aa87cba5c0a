#!/usr/bin/env bash
# From a fresh clone to a faster model: sets up .venv, fetches a text detector, optimizes and checks it, and times it.
# The wheel that ONNXFUSE_WHEEL names, or one of this version for this machine in dist/, is installed; without, the library is
# compiled.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

name="ch_PP-OCRv4_det"
shape="x=1x3x640x640"
optimized="$root/build/$name.fused.onnx"

# Says every ten seconds how far the compiler is, until the shell that started it ends.
tell_progress() {
    while sleep 10 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        echo "   $SECONDS s, $(find "$root/build" -name '*.o' 2>/dev/null | wc -l) files compiled"
    done
}

version="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/onnxfuse/__init__.py")"
wheels=("$root/dist/onnxfuse-$version"-py3-none-*linux*_"$(uname -m)".whl) # the pattern itself where there is none
wheel="${ONNXFUSE_WHEEL:-${wheels[0]}}"
if [ -n "${ONNXFUSE_WHEEL:-}" ] || [ -f "$wheel" ]; then
    echo "1. Setting up .venv with $(basename "$wheel")"
    make_venv "$venv"
    rm -f "$venv/onnxfuse-installed"
    pip_install "$venv" "" --force-reinstall --no-deps "$wheel"
    pip_install "$venv" "" "$wheel[cpu]"
else
    echo "1. Setting up .venv: without a wheel the library is compiled, in one to two minutes"
    tell_progress &
    teller=$!
    set_up cpu
    kill "$teller"
fi
echo "2. Fetching $name"
model="$("$venv/bin/onnxfuse" zoo fetch "$name")"
echo "3. Optimizing and checking it"
mkdir -p "$root/build"
"$venv/bin/onnxfuse" optimize "$model" "$optimized" --shape "$shape"
echo "4. Timing the original and the optimized model, build/$name.fused.onnx, in turns"
"$venv/bin/onnxfuse" bench "$model" "$optimized" --shape "$shape" --threads 2 -q
