# hearth's own kernels under compute-sanitizer: no access out of place, no race.
# shellcheck shell=bash disable=SC2154,SC2317 # functions are called through check

race_jobs=8

own_kernels() { # FILE...: sets `own` to options that name their kernels
    local name
    own=() # the libraries' kernels take most of the time, and cuDNN's have hazards
    while read -r name; do
        own+=(--kernel-name "kns=$name")
    done < <(grep -ho '[a-z0-9_]*_kernel\b' "$@" | sort -u)
}

sanitize() { # TOOL COMMAND...: hearth's own kernels under compute-sanitizer
    "$sanitizer" --tool "$1" "${own[@]}" --error-exitcode 9 "${@:2}"
}

# Of kernels that an op may choose, all. Not the ones that they are compared with: racecheck counts every access to shared memory,
# and the plain kernels have two for each multiplication. Grouped products have to be looked at wherever they run: under racecheck
# of CUDA 13.0 one that is not ends in an illegal access, with no kernel looked at at all, and never without the tool.
race_bench() { # KIND FILE...: of src/ops/cuda
    local own=() bench
    bench=$(program "$1_bench")
    if [[ -z $bench ]]; then
        echo "$1_bench is not built"
        return 77
    fi
    own_kernels "${@:2}"
    sanitize racecheck "$bench" --race
}

# Every op at its small cases; of many, or of grouped products, at every eleventh: no loop over shapes has so many, so that each
# shape comes by. Of linear layers and SwiGLU's products every variant, by the choice in the tuning cache; of grouped ones the benches have them.
# Runs with cuBLAS's kernels end in an error of racecheck of CUDA 13.0: not the ops that are cuBLAS's alone, and the others
# in bf16, for which there are kernels of hearth. The tool works on the CPU for the most part, so several run at once.
race_ops() {
    local op cases keys choice last count=0 running=0 missed=0 narrow every
    race() { # LOG COMMAND...: in the background, when there is room
        local log=$1
        if ((running == race_jobs)); then
            wait -n || missed=$((missed + 1))
            running=$((running - 1))
        fi
        sanitize racecheck "${@:2}" </dev/null >"$log" 2>&1 &
        count=$((count + 1)) running=$((running + 1))
    }
    while read -r op cases; do
        keys=none last=0 narrow=()
        case $op in
        linear_backward_weight | linear_fp8 | linear_swiglu_fp8_forward) continue ;; # the last: swiglu_fp8_bench has its kernels
        linear_swiglu_*) keys=swiglu last=2 narrow=(--dtype bf16) ;;
        linear_*) keys=linear last=1 narrow=(--dtype bf16) ;;
        esac
        every=1
        if ((cases > 48)) || [[ $op == grouped_* ]]; then every=11; fi
        if ! grep -q "$(printf '\t')$keys " "$work/sanitizer/tune.txt"; then last=0; fi # these shapes have no choice
        for ((choice = 0; choice <= last; choice++)); do
            export HEARTH_TUNE_CACHE=$work/sanitizer/race-$op-$choice.tune
            sed -E "s/\t($keys [^\t]*)\t.*/\t\1\t$choice/" "$work/sanitizer/tune.txt" >"$HEARTH_TUNE_CACHE"
            race "$work/sanitizer/race-$op-$choice.log" "$ops_compare" --small --every "$every" "${narrow[@]}" "=$op"
        done
    done < <(awk 'NF == 6 && $2 ~ /^[0-9]+$/ { print $1, $2 }' "$work/sanitizer/ops.log")
    if ((count == 0)); then
        echo "ops_compare has named no ops"
        return 1
    fi
    for op in rmsnorm cross_entropy grouped_linear; do # those with other kernels on other GPUs
        race "$work/sanitizer/race-$op-portable.log" "$ops_compare" --small --portable --every 11 "$op"
    done
    for (( ; running > 0; running--)); do wait -n || missed=$((missed + 1)); done
    if ((missed)); then grep -l '^========= .*Error' "$work"/sanitizer/race-*.log; fi
    echo "$count runs of ops and their variants, $missed of them with hazards or failures"
    ((missed == 0))
}

part_sanitizer() {
    local kind bench benches=()
    sanitizer=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer)
    ops_compare=$(program ops_compare)
    if on_cpu || [[ -z $sanitizer || -z $ops_compare ]]; then
        note "memcheck, racecheck" SKIPPED "no GPU, compute-sanitizer is not installed, or ops_compare not built"
        return
    fi
    if ! fits "memcheck, racecheck" 120; then return; fi
    own_kernels src/ops/cuda/*.cu
    for kind in linear swiglu swiglu_fp8 attention grouped grouped_swiglu grouped_fp8; do
        bench=$(program "${kind}_bench")
        if [[ -n $bench ]]; then benches+=("$bench"); fi
    done
    # Kernels are chosen beforehand, well or not: a race under the sanitizer takes minutes.
    mkdir -p "$work/sanitizer"
    local -x HEARTH_TUNE_CACHE=$work/sanitizer/tune.txt
    "$ops_compare" --small >"$work/sanitizer/ops.log" 2>&1 &
    for bench in "${benches[@]}"; do "$bench" --small >>"$work/sanitizer/benches.log" 2>&1 & done
    wait
    for bench in "$ops_compare" "${benches[@]}"; do
        check "memcheck, $(basename "$bench")" 60 sanitize memcheck "$bench" --small &
    done
    check "memcheck, kernels of other GPUs" 60 sanitize memcheck "$ops_compare" --small --portable &
    wait
    local gpu=src/ops/cuda
    check "racecheck, grouped_bench" 60 race_bench grouped $gpu/grouped_gemm_sm90.cu &
    check "racecheck, grouped_swiglu_bench" 60 race_bench grouped_swiglu $gpu/grouped_swiglu_sm90.cu $gpu/grouped_gemm_sm90.cu &
    check "racecheck, grouped_fp8_bench" 60 race_bench grouped_fp8 $gpu/grouped_fp8_sm90.cu &
    check "racecheck, swiglu_fp8_bench" 60 race_bench swiglu_fp8 $gpu/swiglu_fp8_sm90.cu $gpu/grouped_fp8_sm90.cu &
    check "racecheck, attention_bench" 120 race_bench attention $gpu/attention_*.cu &
    check "racecheck, every op" 120 race_ops &
    wait
}
