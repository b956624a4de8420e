# Every op of the CUDA table against the CPU's, and every kernel that an op may choose. Without a tuning cache, so that
# every race is run.
# shellcheck shell=bash disable=SC2154

variants() { # KIND WHAT: an op runs the fastest of its kernels only; here all of them
    local bench
    bench=$(program "$1_bench")
    if [[ -z $bench ]]; then
        note "every variant of $2" SKIPPED "$1_bench is not in $bin"
    else
        check "every variant of $2" 20 "$bench" --check
    fi
}

# Their CPU side takes most of the time, so all run at once.
part_ops() {
    local compare dtype
    local -x HEARTH_TUNE_CACHE='' HEARTH_THREADS
    HEARTH_THREADS=$(((3 + $(nproc)) / 4))
    compare=$(program ops_compare)
    if on_cpu; then
        note "ops_compare" SKIPPED "it compares a GPU with the CPU"
        return
    fi
    if [[ -z $compare ]]; then
        note "ops_compare" FAILED "it is not in $bin: was hearth built with CUDA?"
        return
    fi
    for dtype in f32 bf16 f16 fp8; do
        check "ops_compare, $dtype" 60 "$compare" --dtype "$dtype" &
        check "ops_compare, $dtype, kernels of other GPUs" 60 "$compare" --dtype "$dtype" --portable &
    done
    wait
    unset HEARTH_THREADS
    variants linear "linear layers"
    variants swiglu "SwiGLU products"
    variants swiglu_fp8 "SwiGLU products in FP8"
    variants attention "attention"
    variants grouped "grouped products"
    variants grouped_swiglu "SwiGLU products of experts"
    variants grouped_fp8 "grouped products in FP8"
}
