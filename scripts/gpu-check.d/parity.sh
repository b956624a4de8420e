# Models, losses, gradients and curves as Hugging Face transformers computes them.
# shellcheck shell=bash disable=SC2154

parity() { # OPTIONS of hf_parity
    local code=0 said
    said=$("$hf_parity" --device "$device" "$@" "${fixtures[@]}" 2>&1) || code=$?
    echo "$said"
    awk '/% of its bound/ { share = $0; sub(/ % of its bound.*/, "", share); sub(/.*\(/, "", share)
                            if (share + 0 >= worst) worst = share + 0; count++ }
         END { printf "%d fixtures, the worst error at %d %% of its bound\n", count, worst }' <<<"$said"
    return "$code"
}

part_parity() {
    local reference recompute
    hf_parity=$(program hf_parity)
    fixtures=()
    for reference in tests/fixtures/models/*/reference.safetensors "$shared"/fixtures/*/reference.safetensors \
        "$bin"/fixtures/*/reference.safetensors; do
        if [[ -e $reference ]]; then fixtures+=("$(dirname "$reference")"); fi
    done
    if on_cpu; then fixtures=("${fixtures[@]:0:2}"); fi
    if [[ -z $hf_parity ]]; then
        note "hf_parity" FAILED "it is not in $bin"
        return
    fi
    for recompute in none selective full; do
        check "hf_parity fp32, recompute $recompute" 12 parity --precision fp32 --recompute "$recompute" &
    done
    check "hf_parity bf16" 12 parity --precision bf16 &
    check "hf_parity fp16" 12 parity --precision fp16 &
    if on_cpu; then
        note "hf_parity TF32" SKIPPED "a CPU has no TF32"
    else
        check "hf_parity TF32" 12 parity --precision fp32 --tf32 &
    fi
    wait
}
