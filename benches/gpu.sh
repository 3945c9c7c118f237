#!/usr/bin/env bash
# For the day a GPU is there: builds with CUDA, holds the vectors against the references on the device, measures. One
# command, `benches/gpu.sh`, some 30 minutes, most of it building. Needs the CUDA toolkit (nvcc) and its driver.
#   LAYERS=24 TOKENS=400000 ROUNDS=5 benches/gpu.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

need() { command -v "$1" >/dev/null || { echo "benches/gpu.sh: $1 is not there: $2" >&2; exit 2; }; }
need nvidia-smi 'install the driver, or take a machine with a GPU'
need "${NVCC:-nvcc}" 'install the CUDA toolkit, or name its compiler in NVCC'
nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv

echo '== build'
cargo build --release --locked --features cuda

# On the device: golden files of the Python reference, candle-transformers' own models, every text alone and in company;
# f16 and bf16 against f32, a pass in several parts, and the rescue of what f16 cannot hold.
echo '== vectors'
export FOREBAY_TEST_DEVICE=cuda
cargo test --release --locked --features cuda,testkit --test parity
cargo test --release --locked --features cuda,testkit --lib embed::candle

# Against sentence-transformers on the same GPU, where its torch finds it; else ours alone. The last column is the cosine to
# sentence-transformers in f32 (to our f32 where it is absent).
echo '== speed'
measure() {
    FOREBAY_PEERS_FEATURES=cuda benches/peers/run --device cuda --layers "${LAYERS:-24}" --rounds "${ROUNDS:-5}" "$@"
}
for pass in 8192 65536; do
    measure --tokens "${TOKENS:-400000}" --engines \
        "st,st-f16,forebay:pass_tokens=$pass,forebay:compute=f16+pass_tokens=$pass,forebay:compute=bf16+pass_tokens=$pass"
done
measure --latency 50 --engines st,st-f16,forebay,forebay:compute=f16
measure --long --engines st,st-f16,forebay,forebay:compute=f16
