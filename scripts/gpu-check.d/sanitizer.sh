# hearth's own kernels under compute-sanitizer: no access out of place, no race.
# shellcheck shell=bash disable=SC2154,SC2317 # functions are called through check

race_jobs=8

own_kernels() { # sets `own` to options that name hearth's kernels
    local name
    own=() # the libraries' kernels take most of the time, and cuDNN's have hazards
    while read -r name; do
        own+=(--kernel-name "kns=$name")
    done < <(grep -ho '[a-z0-9_]*_kernel\b' src/ops/cuda/*.cu | sort -u)
}

sanitize() { # TOOL COMMAND...: hearth's own kernels under compute-sanitizer
    "$sanitizer" --tool "$1" "${own[@]}" --error-exitcode 9 "${@:2}"
}

# Every op, and of products with several kernels each of them: the choice is written into the tuning cache. Runs with
# cuBLAS's kernels end in an error of racecheck of CUDA 13.0: not the ops that are cuBLAS's alone, and the others in bf16, for which there
# are kernels of hearth. The tool works on the CPU for the most part, so several run at once.
race_ops() {
    local op keys choice first last count=0 running=0 missed=0 narrow
    race() { # LOG COMMAND...: in the background, when there is room
        local log=$1
        if ((running == race_jobs)); then
            wait -n || missed=$((missed + 1))
            running=$((running - 1))
        fi
        sanitize racecheck "${@:2}" </dev/null >"$log" 2>&1 &
        count=$((count + 1)) running=$((running + 1))
    }
    while read -r op; do
        keys=none first=0 last=0 narrow=()
        case $op in
        linear_backward_weight | linear_fp8) continue ;;
        linear_*) narrow=(--dtype bf16) ;;
        esac
        case $op in
        linear_swiglu_*) keys=swiglu last=2 ;;
        grouped_swiglu_*) keys='grouped swiglu' last=7 ;;
        grouped_linear_fp8) keys='grouped fp8' first=-1 last=3 ;;
        grouped_linear_*) keys='grouped tokens' last=4 ;;
        linear_*) keys=linear last=1 ;;
        esac
        if ! grep -q "$(printf '\t')$keys " "$work/sanitizer/tune.txt"; then last=$first; fi # these shapes have no choice
        for ((choice = first; choice <= last; choice++)); do
            export HEARTH_TUNE_CACHE=$work/sanitizer/race-$op-$choice.tune
            sed -E "s/\t($keys [^\t]*)\t.*/\t\1\t$choice/" "$work/sanitizer/tune.txt" >"$HEARTH_TUNE_CACHE"
            race "$work/sanitizer/race-$op-$choice.log" "$ops_compare" --small "${narrow[@]}" "=$op"
        done
    done < <(awk 'NF == 6 && $2 ~ /^[0-9]+$/ { print $1 }' "$work/sanitizer/ops.log")
    if ((count == 0)); then
        echo "ops_compare has named no ops"
        return 1
    fi
    for op in rmsnorm cross_entropy grouped_linear; do # those with other kernels on other GPUs
        race "$work/sanitizer/race-$op-portable.log" "$ops_compare" --small --portable "$op"
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
    own_kernels
    for kind in linear swiglu attention grouped grouped_swiglu grouped_fp8; do
        bench=$(program "${kind}_bench")
        if [[ -n $bench ]]; then benches+=("$bench"); fi
    done
    # Kernels are chosen beforehand: a race under the sanitizer takes minutes.
    mkdir -p "$work/sanitizer"
    local -x HEARTH_TUNE_CACHE=$work/sanitizer/tune.txt
    "$ops_compare" --small >"$work/sanitizer/ops.log" 2>&1
    for bench in "${benches[@]}"; do "$bench" --small >>"$work/sanitizer/benches.log" 2>&1; done
    for bench in "$ops_compare" "${benches[@]}"; do
        check "memcheck, $(basename "$bench")" 60 sanitize memcheck "$bench" --small &
    done
    check "memcheck, kernels of other GPUs" 60 sanitize memcheck "$ops_compare" --small --portable &
    wait
    for kind in attention grouped_swiglu grouped_fp8; do # of kernels that ops may choose, all
        bench=$(program "${kind}_bench")
        if [[ -n $bench ]]; then check "racecheck, ${kind}_bench" 120 sanitize racecheck "$bench" --small & fi
    done
    check "racecheck, every op" 120 race_ops &
    wait
}
