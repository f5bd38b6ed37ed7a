#!/usr/bin/env bash
# Builds ghostlab for NVIDIA GPUs without an installed CUDA toolkit. The compiler and the libraries come from NVIDIA's wheels
# on PyPI. CUDA 13.0 needs driver 580 or later.
#
#   tools/cuda_build.sh                        # target/cuda/release/ghostlab
#   CUDA_COMPUTE_CAP=90 tools/cuda_build.sh    # for a GPU other than the local one (80: A100, 86: RTX 30, 89: RTX 40, 90: H100)
#   CUDA_FOLDER=~/cuda tools/cuda_build.sh     # shared by several checkouts (about 1.2 GB)
#
#   tools/cuda_build.sh test                   # other cargo commands, with arguments: test, bench, clippy -p …
#
# Needs python3 with pip, and a C++ compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${CUDA_FOLDER:-$PWD/target/cuda-13.0}
toolkit=$folder/nvidia/cu13
wheels=(
    nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvrtc==13.0.88 nvidia-cublas==13.1.0.3 nvidia-curand==10.4.0.35
)

# The last step of the download writes the file `fetched`, so an interrupted download starts again.
if [[ "$(cat "$folder/fetched" 2>/dev/null)" != "${wheels[*]}" ]]; then
    echo "fetching CUDA 13.0 from PyPI to $folder"
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "$folder" "${wheels[@]}"
    # Create the folder that build scripts expect, and the library names that linkers expect.
    ln -sfn lib "$toolkit/lib64"
    for library in "$toolkit"/lib/lib*.so.*; do
        ln -sf "$(basename "$library")" "${library%%.so.*}.so"
    done
    # libcuda comes with the driver. Build a stub for the linker that only defines the symbols, like CUDA's stubs.
    mkdir -p "$toolkit/lib/stubs"
    { grep -oE '\bcu[A-Z][A-Za-z0-9_]*' "$toolkit/include/cuda.h"; printf 'cuProfiler%s\n' Start Stop; } |
        sort -u | sed 's/.*/void &(void) {}/' |
        "${CC:-cc}" -shared -fPIC -w -Wl,-soname,libcuda.so.1 -x c - -o "$toolkit/lib/stubs/libcuda.so"
    echo "${wheels[*]}" >"$folder/fetched"
fi

if [[ -z ${CUDA_COMPUTE_CAP:-} ]]; then
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .) || true
    CUDA_COMPUTE_CAP=${capability:-80}
fi
export CUDA_COMPUTE_CAP CUDA_PATH=$toolkit CUDA_HOME=$toolkit CUDA_ROOT=$toolkit CUDA_TOOLKIT_ROOT_DIR=$toolkit
export PATH=$toolkit/bin:$PATH LIBRARY_PATH=$toolkit/lib:$toolkit/lib/stubs${LIBRARY_PATH:+:$LIBRARY_PATH}
export NVCC=$toolkit/bin/nvcc CUDARC_CUDA_VERSION=13000
# The program loads the libraries from the download folder, and libcuda from the system.
export RUSTFLAGS="${RUSTFLAGS:-} -L native=$toolkit/lib -L native=$toolkit/lib/stubs -C link-arg=-Wl,-rpath,$toolkit/lib"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/cuda}

command=${1:-build}
shift || true
release=--release
if [[ $command == bench ]]; then release=; fi
cargo "$command" $release --features cuda "$@"

echo
echo "built with:  $("$NVCC" --version | sed -n 's/.*release \([^,]*\), \(.*\)/nvcc \1 (\2)/p'), for compute capability $CUDA_COMPUTE_CAP"
program=$CARGO_TARGET_DIR/release/ghostlab
if [[ -x $program ]]; then
    echo "program:     $program"
    echo "links:       $(ldd "$program" | grep -oE '(libcu|libnv)[a-zA-Z]*\.so[.0-9]*' | sort -u | tr '\n' ' ')"
fi
if command -v nvidia-smi >/dev/null; then
    echo "GPU here:    $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)"
else
    echo "GPU here:    none; the program only starts on a machine with an NVIDIA driver"
fi
