# Does FP8 or fp16 cost quality? A Llama of 124M parameters on real text, in bf16, FP8 and fp16, with the same three orders
# of data. A run that the limit stops writes a checkpoint and goes on in the next call with the same HEARTH_WORK; of one that
# has ended only its metrics are needed.
# shellcheck shell=bash disable=SC2154,SC2034 # variables of scripts/gpu-check; patience is check's

quality_keys() {
    quality_steps=$(pick 610 12) # of 65,536 tokens: 40M
    quality=(model.arch=llama model.hidden=768 model.layers=12 model.heads=12 model.ffn=2048 model.tie_embeddings=true
        model.scale_residual=true train.seq=1024 train.micro_batch=32 train.grad_accum=2 optimizer.lr=1e-3
        schedule.warmup_steps=60 schedule.kind=cosine schedule.min_lr_ratio=0.1 eval.every=61 eval.windows=128
        checkpoint.keep_last=1 checkpoint.keep_best=false checkpoint.every=200)
    if on_cpu; then
        quality=(model.arch=llama model.hidden=32 model.layers=1 model.heads=2 model.ffn=64 train.seq=32 train.micro_batch=2
            optimizer.lr=1e-3 schedule.warmup_steps=2 eval.every=4 eval.windows=4 checkpoint.keep_last=1 checkpoint.keep_best=false)
    fi
}

quality_ended() { # RUN
    grep -qs "\"step\":$quality_steps,.*\"eval\":\"full\"" "$1/metrics.jsonl"
}

quality_run() { # PRECISION SEED
    local run=$work/quality/$1-$2 start code=0 seconds
    local -x HEARTH_TUNE_CACHE=$work/quality/tune-$1.txt
    if [[ -e $run/config.toml ]] && compgen -G "$run/checkpoints/step-*/" >/dev/null; then
        start=(--resume --run "$run")
    else
        rm -rf "$run"
        sets "${quality[@]}" "data.train=[\"$quality_data\"]" train.device="$device" train.precision="$1" train.steps="$quality_steps" \
            train.seed=1 data.seed="$2" watch.terminal=off
        start=("$work/quality/base.toml" --run "$run" "${words[@]}")
    fi
    # Asked to stop while there is time to write a checkpoint.
    seconds=$(($(time_left) - 15))
    timeout -s TERM "$seconds" "$hearth" train "${start[@]}" || code=$?
    if quality_ended "$run"; then
        rm -rf "$run/checkpoints"
        quality_loss "$run"
    elif ((code == 0 || code == 124)); then
        echo "(time) stopped at step $(curve "$run" | tail -n 1 | cut -d ' ' -f 1) of $quality_steps; the next call goes on"
        return 77
    else
        return 1
    fi
}

quality_loss() { # RUN
    sed -n 's/.*"eval":"full","val_loss":\([0-9.e+-]*\).*/validation loss \1/p' "$1/metrics.jsonl" | tail -n 1
}

part_quality() {
    local precision seed patience=3600
    if [[ -z ${HEARTH_DATA:-} || ! -d ${HEARTH_DATA:-} ]]; then
        note "quality" SKIPPED "HEARTH_DATA names no dataset"
        return
    fi
    quality_data=$(cd "$HEARTH_DATA" && pwd)
    mkdir -p "$work/quality"
    : >"$work/quality/base.toml"
    quality_keys
    for seed in 1 2 3; do
        for precision in bf16 fp8 fp16; do
            if quality_ended "$work/quality/$precision-$seed"; then
                note "quality, $precision, order $seed" ok "$(quality_loss "$work/quality/$precision-$seed"), in an earlier call"
            else
                check "quality, $precision, order $seed" "$(pick 40 20)" quality_run "$precision" "$seed"
            fi
        done
    done
    check "quality" 1 runs quality "$work/quality" "$quality_steps"
}
