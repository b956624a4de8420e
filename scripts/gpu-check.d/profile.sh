# Where the time of a step goes, as hearth train --profile sees it through CUPTI: all of it in parts with names; what
# watching costs; figures of NVML; and the report.
# shellcheck shell=bash disable=SC2154

profile_run() { # NAME KEY=VALUE...
    local run=$work/profile-$1
    rm -rf "$run"
    sets "data.train=[\"$work/data\"]" train.device="$device" train.steps="$(pick 30 12)" schedule.warmup_steps=2 checkpoint.every=0 \
        checkpoint.at_end=false eval.at_end=false watch.terminal=plain "${@:2}"
    mkdir -p "$work/profile"
    printf '[optimizer]\nlr = 1e-4\n' >"$work/profile/base.toml"
    HEARTH_LOG=debug "$hearth" train "$work/profile/base.toml" --run "$run" --profile "${words[@]}" >"$work/profile/$1.log" 2>&1
    local code=$?
    cat "$work/profile/$1.log"
    if ((code)); then return 1; fi
    cp "$work/profile/$1.log" "$run/said.log"
    "$hearth" report "$run" -o "$run/report.html" || return 1
    runs profile "$run" "$(pick gpu cpu)"
}

part_profile() {
    synthetic_data || return
    if on_cpu; then
        check "profile, dense" 5 profile_run dense model.preset=demo-llama model.vocab=1024 train.seq=64 train.micro_batch=2
        check "profile, experts" 5 profile_run experts model.preset=demo-moe model.vocab=1024 train.seq=64 train.micro_batch=2
        return
    fi
    check "profile, smollm-360m" 30 profile_run smollm-360m model.preset=smollm-360m train.seq=512 train.micro_batch=64 \
        train.grad_accum=2
    check "profile, qwen3-moe-500m" 30 profile_run qwen3-moe-500m model.preset=qwen3-moe-500m train.seq=4096 train.micro_batch=8
}
