#!/usr/bin/env bash
# Runs the library as it is for AArch64 under QEMU, on a Linux of another processor.
#
#   scripts/aarch64.sh tools                fetches the emulator and the cross compiler alone, for scripts/wheels.sh
#   scripts/aarch64.sh wheel FILE RUNTIME   installs that wheel and that ONNX Runtime there, in a fresh folder, and runs a model
#   scripts/aarch64.sh setup                fetches what is needed and builds everything into build/aarch64
#   scripts/aarch64.sh fuzz [RUNS [SEEDS]]  runs each native fuzz driver RUNS times (300) with each of so many seeds (1)
#   scripts/aarch64.sh pytest [ARG...]      runs pytest there (tests/custom_ops if there are no arguments)
#   scripts/aarch64.sh python [ARG...]      runs Python there
#   scripts/aarch64.sh current              fails, with the reason, unless setup was run with the sources as they are
#
# Set-up takes packages of Debian 12 (the emulator, the cross compiler and an arm64 Python) and wheels of PyPI in the
# versions of tests/constraints.txt.  It needs apt-get, dpkg-deb and a Python 3.11 with pip, but no rights: everything is
# unpacked below build/aarch64, nothing is installed.  What tests compile is run by the emulator too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

here="$root/build/aarch64"
tools="$here/tools"   # the emulator and the cross compiler, which run on this machine
arm="$here/root"      # what the emulated programs find in place of /
guest="$here/venv"    # an environment whose bin/python is emulated
emulator="$tools/usr/bin/qemu-aarch64-static"

host_packages=(qemu-user-static binutils-aarch64-linux-gnu cpp-12-aarch64-linux-gnu gcc-12-aarch64-linux-gnu
    g++-12-aarch64-linux-gnu libgcc-12-dev-arm64-cross libgcc-s1-arm64-cross libc6-arm64-cross libc6-dev-arm64-cross
    libstdc++6-arm64-cross libstdc++-12-dev-arm64-cross linux-libc-dev-arm64-cross libasan8-arm64-cross
    libtsan2-arm64-cross libubsan1-arm64-cross liblsan0-arm64-cross)
arm_packages=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libstdc++6 libgcc-s1 libexpat1 zlib1g
    libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libreadline8 libtinfo6 libncursesw6 libdb5.3 libcrypt1
    libnsl2 libtirpc3 libasan8 libubsan1 libtsan2)
# What onnxfuse needs to run and be tested; onnxruntime's wheels are for a glibc of 2.28 or older.
requirements=(numpy onnx onnx-graphsurgeon ml_dtypes rich onnxruntime pytest hypothesis)

unpack_packages() {
    local apt="$here/apt" options package
    [ -f "$apt/unpacked" ] && return
    rm -rf "$apt" "$tools" "$arm"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
    options=(-qq -o APT::Architectures::="$(dpkg --print-architecture)" -o APT::Architectures::=arm64
        -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=)
    apt-get "${options[@]}" update
    (cd "$apt/debs" && apt-get "${options[@]}" download "${host_packages[@]}" "${arm_packages[@]/%/:arm64}")
    for package in "$apt"/debs/*.deb; do
        case "$package" in
        *_arm64.deb) dpkg-deb --extract "$package" "$arm" ;;
        *) dpkg-deb --extract "$package" "$tools" ;;
        esac
    done
    touch "$apt/unpacked"
}

# ONNX Runtime asks /proc/cpuinfo for the instructions that there are: those of a Neoverse N1, which is what is emulated.
describe_processor() {
    local i
    mkdir -p "$arm/proc"
    for ((i = 0; i < $(nproc); ++i)); do
        printf '%s\n' "processor : $i" "BogoMIPS : 50.00" \
            "Features : fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp" \
            "CPU implementer : 0x41" "CPU architecture: 8" "CPU variant : 0x3" "CPU part : 0xd0c" "CPU revision : 1" ""
    done >"$arm/proc/cpuinfo"
}

# The compiler as CMake wants it, and one whose programs start the emulator, for tests that compile and run them.  Addresses
# are not random, where that is allowed: ThreadSanitizer would start the program anew to have it so, without the emulator.
write_programs() {
    local setarch=""
    setarch --addr-no-randomize true 2>/dev/null && setarch="$(command -v setarch) --addr-no-randomize"
    mkdir -p "$guest/bin"
    write_program "$here/g++" <<EOF
#!/bin/sh
LD_LIBRARY_PATH="$tools/usr/lib/$(uname -m)-linux-gnu" exec "$tools/usr/bin/aarch64-linux-gnu-g++-12" --sysroot="$tools" "\$@"
EOF
    write_program "$here/emulate" <<EOF
#!/bin/sh
exec $setarch "$emulator" -cpu neoverse-n1 -L "$arm" "\$@"
EOF
    write_program "$here/c++" <<EOF
#!/bin/bash
"$here/g++" "\$@" || exit
output=a.out
for argument; do
    case "\$argument" in -c | -E | -S | -M | -MM | -shared | -fsyntax-only | -print-* | --version) exit 0 ;; esac
    [ "\${last:-}" = -o ] && output="\$argument"
    last="\$argument"
done
mv "\$output" "\$output.aarch64"
printf '#!/bin/sh\nexec "%s" "%s" "\$@"\n' "$here/emulate" "\$(realpath "\$output.aarch64")" >"\$output"
chmod +x "\$output"
EOF
    write_program "$guest/bin/python" <<EOF
#!/bin/sh
exec "$here/emulate" -0 "\$0" "$arm/usr/bin/python3.11" "\$@"
EOF
    printf '%s\n' "home = $arm/usr/bin" "include-system-site-packages = false" "version = 3.11" >"$guest/pyvenv.cfg"
}

# `install_arm PACKAGES CONSTRAINTS REQUIREMENT...`: from wheels, into a folder.
install_arm() {
    local platforms=() platform
    for platform in 28 27 24 17; do platforms+=(--platform "manylinux_2_${platform}_aarch64"); done
    pip_install "$venv" "$2" --target "$1" "${platforms[@]}" --platform manylinux2014_aarch64 \
        --only-binary=:all: --python-version 3.11 --implementation cp "${@:3}"
}

install_packages() {
    local packages="$guest/lib/python3.11/site-packages" wanted
    wanted="$(cat "$root/$constraints") ${requirements[*]}"
    if [ "$wanted" != "$(cat "$guest/installed.txt" 2>/dev/null)" ]; then
        rm -rf "$packages"
        install_arm "$packages" "" --constraint "$constraints" "${requirements[@]}"
        echo "$wanted" >"$guest/installed.txt"
    fi
    rm -rf "$packages"/onnxfuse "$packages"/onnxfuse-*.dist-info
    CXX="$here/g++" CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DONNXFUSE_BUILD_TESTS=ON" \
        pip_install "$venv" "$constraints" --target "$packages" --upgrade --no-deps \
        --config-settings build-dir=build/aarch64/native .
}

make_tools() {
    unpack_packages
    describe_processor
    write_programs
    make_venv "$venv"
}

try_wheel() {
    local packages="$here/wheel/site-packages"
    make_tools
    rm -rf "$here/wheel"
    install_arm "$packages" "" "$1" "$2"
    cd "$here/wheel"
    PATH="$guest/bin" PYTHONPATH="$packages" "$guest/bin/python" -S "$root/tools/wheel_check.py"
}

set_up_aarch64() {
    rm -f "$guest/sources.txt"
    make_tools
    install_packages
    sources_checksum >"$guest/sources.txt"
}

check_current() {
    [ -f "$guest/sources.txt" ] || die "scripts/aarch64.sh setup was not run"
    [ "$(sources_checksum)" = "$(cat "$guest/sources.txt")" ] || die "scripts/aarch64.sh setup was run with other sources"
}

run_fuzzers() {
    local fuzzer seed
    for fuzzer in "$here"/native/fuzz_*; do
        basename "$fuzzer"
        for ((seed = 1; seed <= ${2:-1}; ++seed)); do
            "$here/emulate" "$fuzzer" "${1:-300}" "$seed" >/dev/null || die "it failed with seed $seed"
        done
    done
}

# LeakSanitizer stops the program's threads by ptrace, which the emulator does not have.
run_python() {
    cd "$root"
    PYTHONSAFEPATH=1 ASAN_OPTIONS=detect_leaks=0 CXX="$here/c++" exec "$guest/bin/python" "$@"
}

command="${1:-}"
[ "$#" -gt 0 ] && shift
case "$command" in
tools) make_tools ;;
wheel) try_wheel "$(realpath "$1")" "$2" ;;
setup) set_up_aarch64 ;;
fuzz) run_fuzzers "$@" ;;
pytest) [ "$#" -gt 0 ] || set -- tests/custom_ops && run_python -m pytest "$@" ;;
python) run_python "$@" ;;
current) check_current ;;
*) die "tools, wheel, setup, fuzz, pytest, python or current is wanted" ;;
esac
