# The same bits from the same run, in every precision, also after a kill; and curves beside each other.
# shellcheck shell=bash disable=SC2154

# Of fp16 with a loss scale of 2^30, which is too much for the first steps, and doubled soon enough to be so again.
overflow_keys=(train.precision=fp16 train.loss_scale=1073741824 train.loss_scale_steps=15)

train_words() { # RUN STEPS KEY=VALUE...: sets `command` to a run of the demo's model, without evaluation
    sets "data.train=[\"$work/data\"]" train.device="$device" train.steps="$2" schedule.warmup_steps=5 eval.every=0 \
        eval.at_end=false checkpoint.every=10 checkpoint.at_end=false watch.terminal=off train.hours=0 \
        "${tiny[@]}" "${@:3}"
    command=("$hearth" train configs/demo.toml --run "$1" "${words[@]}")
}

train() { # RUN STEPS KEY=VALUE...
    rm -rf "$1"
    train_words "$@"
    "${command[@]}"
}

same_bits() { # RUN RUN STEPS
    curve "$1" >"$1.curve.txt"
    curve "$2" >"$2.curve.txt"
    if [[ $(wc -l <"$1.curve.txt") -ne $3 ]]; then
        echo "$1 has $(wc -l <"$1.curve.txt") steps, not $3"
        return 1
    fi
    if ! cmp -s "$1.curve.txt" "$2.curve.txt"; then
        echo "the first steps that differ (step, loss, gradient norm):"
        diff "$1.curve.txt" "$2.curve.txt" | head -n 6
        return 1
    fi
}

# The tuning cache is a run's own: which kernels are the fastest depends on what else runs.
train_twice() { # LABEL KEY=VALUE...
    local label=$1
    local -x HEARTH_TUNE_CACHE=$work/tune-$label.txt
    shift
    train "$work/first-$label" "$run_steps" "$@" || return 1
    train "$work/second-$label" "$run_steps" "$@" || return 1
    same_bits "$work/first-$label" "$work/second-$label" "$run_steps" || return 1
    echo "$run_steps steps, losses and norms equal bit for bit"
}

between_checkpoints() { # the first one (step 10) is there, and steps that are in none
    compgen -G "$1/checkpoints/step-*/" >/dev/null && (($(curve "$1" | wc -l) >= 13))
}

# Killed without warning between two checkpoints, then resumed. A run that ends before the signal comes proves nothing
# and is tried again.
train_killed() { # LABEL KEY=VALUE...: compares with the first of train_twice
    local label=$1 run=$work/killed-$1 try child done_steps=0
    local -x HEARTH_TUNE_CACHE=$work/tune-$label.txt
    shift
    if [[ ! -e $work/first-$label/metrics.jsonl ]]; then
        echo "there is no run to compare with"
        return 77
    fi
    for try in 1 2 3 4 5; do
        rm -rf "$run"
        train_words "$run" "$run_steps" "$@"
        "${command[@]}" & # the program itself, not a shell around it, is what the signal must reach
        child=$!
        while kill -0 "$child" 2>/dev/null && ! between_checkpoints "$run"; do sleep 0.002; done
        kill -9 "$child" 2>/dev/null
        wait "$child" 2>/dev/null
        done_steps=$(curve "$run" | wc -l)
        if ((done_steps > 0 && done_steps < run_steps)); then break; fi
        echo "try $try: ended at step $done_steps before it could be killed"
    done
    if ((done_steps == 0 || done_steps >= run_steps)); then return 1; fi
    "$hearth" train --resume --run "$run" || return 1
    same_bits "$work/first-$label" "$run" "$run_steps" || return 1
    echo "killed at step $done_steps of $run_steps, resumed: equal bit for bit"
}

# The scale halves after every step that overflows, weights stay, the run goes on, and the scale doubles again.
overflows() {
    if [[ ! -e $work/first-overflow/metrics.jsonl ]]; then
        echo "there is no run to look at"
        return 77
    fi
    runs scale "$work/first-overflow" "$run_steps" 15
}

# Two float implementations sum in other orders and have other exponentials; what they differ by in one step (some 1e-7)
# goes through the optimizer into the weights of the next, and AdamW's first steps make full steps of the smallest
# gradients. So the curves drift apart along training; 1e-3 over 50 steps leaves room for the drift and none for a bug.
cpu_against_gpu() {
    train "$work/on-cpu" "$curve_steps" train.precision=fp32 train.device=cpu || return 1
    train "$work/on-gpu" "$curve_steps" train.precision=fp32 || return 1
    runs near "$work/on-cpu" "$work/on-gpu" "$curve_steps" 1e-3 1
}

# TF32 rounds the inputs of products to 11 bits, as fp16 does, and is given that precision's room: a quarter of the 3 % that
# bf16 with 8 bits may be off by at a step. A curve that does not differ at all has not had TF32.
tf32_beside_fp32() {
    local key
    key=train.tf32=$(pick true false)
    train "$work/with-fp32" "$curve_steps" train.precision=fp32 || return 1
    train "$work/with-tf32" "$curve_steps" train.precision=fp32 "$key" || return 1
    if ! on_cpu && same_bits "$work/with-fp32" "$work/with-tf32" "$curve_steps" >/dev/null; then
        echo "the curves are the same bits: train.tf32 has done nothing"
        return 1
    fi
    runs near "$work/with-fp32" "$work/with-tf32" "$curve_steps" 7.5e-3 1
}

train_all() { # LABEL KEY=VALUE...
    check "trained twice, $1" 15 train_twice "$@"
    check "killed and resumed, $1" 15 train_killed "$@"
}

part_training() {
    local precision
    run_steps=$(pick 200 100) curve_steps=$(pick 50 10) tiny=()
    if on_cpu; then tiny=(train.seq=32 model.hidden=32 model.layers=2 model.heads=2 model.ffn=64); fi
    rm -rf "$work"/first-* # of an earlier call in the same folder
    synthetic_data || return
    for precision in fp32 bf16 fp16 fp8; do
        train_all "$precision" train.precision="$precision" &
    done
    wait
    {
        train_all overflow "${overflow_keys[@]}"
        check "fp16 scale after overflows" 1 overflows
    } &
    check "CPU against GPU, fp32" 30 cpu_against_gpu &
    check "TF32 beside fp32" 15 tf32_beside_fp32 &
    wait
}
