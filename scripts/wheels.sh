#!/usr/bin/env bash
# Builds wheels for any Python from 3.11 on into dist/, on Linux on x86-64, and tests them.
#
#   scripts/wheels.sh build [PLATFORM]      builds the wheel for linux-x86_64 (if none is named), linux-aarch64,
#                                           windows-x86_64 or macos-arm64, and looks at what it exports and needs
#   scripts/wheels.sh test [PYTHON...]      installs the wheel for this machine in fresh environments of each Python that
#                                           there is, with the oldest and the newest ONNX Runtime and no compiler, and
#                                           optimizes and runs a model there
#   scripts/wheels.sh test linux-aarch64    does so under QEMU, with Python 3.11
#   scripts/wheels.sh test windows-x86_64   runs native fuzz drivers, and models in ONNX Runtime, under Wine, without Python
#   scripts/wheels.sh speed MODEL...        prints the processor time of optimized models by the wheel's library for this machine
#                                           over that by the library that is compiled in .venv
#
# Needs Python 3.11 or later and g++; for AArch64 what scripts/aarch64.sh says.  The linker is Zig's, from PyPI, for the symbols of an
# older C library; Clang's kernels took twice the time of g++'s in convolutions of PP-OCR.  Windows and macOS have Zig's
# Clang alone.  The same commit gives the same bytes: times in the wheel are the commit's, unless SOURCE_DATE_EPOCH is set.
# With ONNXFUSE_URL, the address of the source, that is in the wheel's metadata.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

here="$root/build/wheels"
tools="$here/tools"
tool_packages=(ziglang==0.17.1 auditwheel lief wheel 'scikit-build-core>=0.10' cmake ninja)
oldest_runtime=1.20.1
glibc=2.28

make_tools() {
    make_venv "$tools"
    pip_install "$tools" "" "${tool_packages[@]}"
    export ZIG_GLOBAL_CACHE_DIR="$here/zig-cache" ZIG_LOCAL_CACHE_DIR="$here/zig-cache"
}

# `write_zig_compiler FILE TARGET`
write_zig_compiler() {
    printf '#!/bin/sh\nexec "%s" -I -m ziglang c++ -target "%s" "$@"\n' "$tools/bin/python" "$2" | write_program "$1"
}

# `write_gnu_compiler FILE TARGET G++`: g++, but with Zig's linker, which has the symbols of an older C library, and with the C++
# library inside.  That asks a newer C library whether there is but one thread: no, for all it is told here.
write_gnu_compiler() {
    local gnu="$3" folder
    folder="$(dirname "$1")"
    echo '__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;' >"$folder/threads.c"
    "$gnu" -x c -O2 -fPIC -c "$folder/threads.c" -o "$folder/threads.o"
    write_program "$1" <<END
#!/bin/bash
for argument; do
    case "\$argument" in -c | -E | -S | --version | -print-*) exec "$gnu" "\$@" ;; esac
done
exec "$tools/bin/python" -I -m ziglang cc -target $2 "\$@" -Wl,--allow-shlib-undefined "$folder/threads.o" \\
    "$("$gnu" -print-file-name=libstdc++.a)" "$("$gnu" -print-file-name=libgcc_s.so.1)"
END
}

# Sets what CMake is told of a platform, and writes its compiler.
prepare() {
    local gnu
    mkdir -p "$folder"
    case "$platform" in
    linux-x86_64)
        system=Linux processor=x86_64
        gnu="$(command -v "${CXX:-g++}")" || die "g++ is needed (or CXX)"
        ;;
    linux-aarch64)
        system=Linux processor=aarch64 gnu="$root/build/aarch64/g++"
        "$root/scripts/aarch64.sh" tools
        ;;
    windows-x86_64) system=Windows processor=AMD64 target=x86_64-windows-gnu tag=win_amd64 ;;
    macos-arm64) system=Darwin processor=arm64 target=aarch64-macos.11.0 tag=macosx_11_0_arm64 ;;
    esac
    if [ "$system" = Linux ]; then
        write_gnu_compiler "$folder/c++" "$processor-linux-gnu.$glibc" "$gnu"
    else
        write_zig_compiler "$folder/c++" "$target"
        options="-DONNXFUSE_BUILD_TESTS=ON"
    fi
}

build() {
    local platform="$1" system processor target tag wheel options=""
    local folder="$here/$platform"
    case "$platform" in
    linux-x86_64 | linux-aarch64 | windows-x86_64 | macos-arm64) ;;
    *) die "linux-x86_64, linux-aarch64, windows-x86_64 or macos-arm64 is wanted" ;;
    esac
    [ "$(uname -sm)" = "Linux x86_64" ] || die "wheels are built on Linux on x86-64 alone"
    make_tools
    prepare
    echo "Compiling for $platform: minutes"
    rm -rf "$folder/wheel"
    CXX="$folder/c++" CXXFLAGS="-ffile-prefix-map=$root=." LDFLAGS=-s \
        CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=$system -DCMAKE_SYSTEM_PROCESSOR=$processor $options" \
        "$tools/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$folder/wheel" \
        --config-settings build-dir="$folder/native" --config-settings install.strip=false "$root"
    wheel="$(echo "$folder"/wheel/*.whl)"
    if [ "$system" = Linux ]; then
        retag "linux_$processor"
        tag="$(glibc_tag "$wheel" "$processor")"
    fi
    retag "$tag"
    [ -z "${ONNXFUSE_URL:-}" ] || add_url "$ONNXFUSE_URL"
    "$tools/bin/python" "$root/tools/wheel_inspect.py" "$wheel"
    mkdir -p "$root/dist"
    mv "$wheel" "$root/dist/"
    (cd "$root/dist" && ls -s --block-size=1K ./*"$tag".whl)
}

# Gives the wheel another platform, in its name and inside.
retag() {
    local renamed="${wheel%-*}-$1.whl"
    [ "$wheel" = "$renamed" ] || "$tools/bin/python" -m wheel tags --remove --platform-tag "$1" "$wheel" >/dev/null
    wheel="$renamed"
}

# Adds the address of the source to what the wheel says of itself.
add_url() {
    local unpacked="$folder/unpacked"
    rm -rf "$unpacked"
    "$tools/bin/python" -m wheel unpack --dest "$unpacked" "$wheel" >/dev/null
    sed -i "0,/^\$/s|^\$|Project-URL: Source, $1\n|" "$unpacked"/*/*.dist-info/METADATA
    "$tools/bin/python" -m wheel pack --dest-dir "$(dirname "$wheel")" "$unpacked"/* >/dev/null
}

# The platform of a wheel for Linux and a processor as auditwheel finds it, which must need no later C library than $glibc.
glibc_tag() {
    local tag
    tag="$("$tools/bin/auditwheel" show "$1" 2>/dev/null | grep -o "manylinux_[0-9]*_[0-9]*_$2" | head -n 1)"
    printf '%s\n' "${tag:-none}" "manylinux_${glibc/./_}_$2" | sort --version-sort --check 2>/dev/null ||
        die "the wheel for linux-$2 needs more than glibc $glibc: ${tag:-of no manylinux}"
    echo "$tag"
}

# One environment: a Python, a version of ONNX Runtime.
test_in() {
    local python="$1" runtime="$2" environment="$here/test" started
    rm -rf "$environment"
    "$python" -m venv "$environment"
    started="$(date +%s%N)"
    env -i PATH="$environment/bin" HOME="$here" "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
        --only-binary=:all: "$wheel" "$runtime"
    (cd "$environment" && env -i PATH="$environment/bin" HOME="$here" "$environment/bin/python" "$root/tools/wheel_check.py")
    echo "$("$python" --version), $runtime: right, $((($(date +%s%N) - started) / 1000000)) ms from pip install to the end"
}

# `find_wheel PATTERN`: the newest wheel in dist/ whose platform ends in that.
find_wheel() {
    wheel="$(ls -t "$root"/dist/*$1.whl 2>/dev/null | head -n 1 || true)"
    [ -n "$wheel" ] || die "there is no such wheel in dist/: run scripts/wheels.sh build"
}

# The oldest ONNX Runtime of those supported that has wheels for a Python.
oldest_for() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 14))' && echo 1.24.1 || echo "$oldest_runtime"
}

test_pythons() {
    local python runtime tested=""
    find_wheel "linux*$(uname -m)"
    [ "$#" -gt 0 ] || set -- python3.11 python3.12 python3.13 python3.14
    for python; do
        if ! "$python" -c "" 2>/dev/null; then
            echo "$python: not here, not tested"
            continue
        fi
        tested=1
        for runtime in "onnxruntime==$(oldest_for "$python")" onnxruntime; do test_in "$python" "$runtime"; done
    done
    [ -n "$tested" ] || die "none of these Pythons is here"
}

test_aarch64() {
    local runtime
    find_wheel "linux*aarch64"
    for runtime in "${runtimes[@]}"; do "$root/scripts/aarch64.sh" wheel "$wheel" "$runtime"; done
}

# The library as ONNX Runtime for Windows loads it into the C example, with models that are fused here, whose results must be
# those that the example gives here; and each fuzz driver.
test_windows() {
    local folder="$here/windows-x86_64" runtime
    command -v wine >/dev/null || die "Wine is needed"
    find_wheel win_amd64
    make_tools
    set_up cpu
    for runtime in "${runtimes[@]}"; do
        rm -rf "$folder/run"
        mkdir -p "$folder/run"
        pip_install "$tools" "" --target "$folder/run/packages" --platform win_amd64 --python-version 3.11 \
            --only-binary=:all: --no-deps "$runtime" "$wheel"
        "$venv/bin/python" -P "$root/tools/wheel_wine.py" "$tools/bin/python" "$folder"
    done
}

test_wheels() {
    local wheel runtimes=("onnxruntime==$oldest_runtime" onnxruntime)
    case "${1:-}" in
    linux-aarch64) test_aarch64 ;;
    windows-x86_64) test_windows ;;
    macos-*) die "there is nothing here that runs programs for macOS" ;;
    *) test_pythons "$@" ;;
    esac
}

compare_speed() {
    local wheel
    find_wheel "linux*$(uname -m)"
    set_up cpu
    "$venv/bin/python" -P "$root/tools/wheel_speed.py" "$wheel" "$@"
}

command="${1:-}"
[ "$#" -gt 0 ] && shift
: "${SOURCE_DATE_EPOCH:=$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH
case "$command" in
build)
    build "${1:-linux-x86_64}"
    ;;
test) test_wheels "$@" ;;
speed) compare_speed "$@" ;;
*) die "build, test or speed is wanted" ;;
esac
