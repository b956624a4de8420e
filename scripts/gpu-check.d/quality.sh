# Does FP8 or fp16 cost quality? A Llama of 124M parameters and qwen3-moe-500m on real text: the Llama in bf16 and FP8 with the
# same three orders of data, in fp16 with the first of them; the model with experts in bf16 and FP8 with the first. A run that the
# limit stops writes a checkpoint and goes on in the next call with the same HEARTH_WORK; of one that has ended only its metrics
# are needed.
# shellcheck shell=bash disable=SC2154,SC2034 # variables of scripts/gpu-check; patience is check's

# On an H200 40M tokens take the Llama 75 s (550K tokens/s), the experts 135 s (300K).
quality_keys() { # MODEL: sets `quality`, its steps, and the seconds that a checkpoint may take
    quality=(schedule.kind=cosine schedule.min_lr_ratio=0.1 eval.windows="$(pick 128 4)" checkpoint.keep_last=1 checkpoint.keep_best=false)
    if [[ $1 == dense ]]; then
        quality_steps=$(pick 610 12) quality_saving=15 # of 65,536 tokens: 40M
        quality+=(model.arch=llama model.tie_embeddings=true model.scale_residual=true optimizer.lr=5e-4)
    else
        quality_steps=$(pick 305 8) quality_saving=30 # of 131,072
        quality+=(optimizer.lr=6e-4)
    fi
    case $device-$1 in
    cpu-dense)
        quality+=(model.hidden=32 model.layers=1 model.heads=2 model.ffn=64 train.seq=32 train.micro_batch=2
            schedule.warmup_steps=2 eval.every=4)
        ;;
    cpu-experts)
        quality+=(model.preset=demo-moe model.vocab=512 model.layers=1 train.seq=32 train.micro_batch=2 schedule.warmup_steps=2 eval.every=4)
        ;;
    *-dense)
        quality+=(model.hidden=768 model.layers=12 model.heads=12 model.ffn=2048 train.seq=1024 train.micro_batch=32
            train.grad_accum=2 schedule.warmup_steps=60 eval.every=61 checkpoint.every=200)
        ;;
    *)
        quality+=(model.preset=qwen3-moe-500m train.seq=1024 train.micro_batch=32 train.grad_accum=4 schedule.warmup_steps=30
            eval.every=61 checkpoint.every=0)
        ;;
    esac
}

quality_folder() { # MODEL: where its runs PRECISION-SEED are
    if [[ $1 == dense ]]; then echo "$work/quality"; else echo "$work/quality/$1"; fi
}

quality_ended() { # RUN
    grep -qs "\"step\":$quality_steps,.*\"eval\":\"full\"" "$1/metrics.jsonl"
}

quality_run() { # RUN PRECISION SEED
    local run=$1 start code=0 seconds
    local -x HEARTH_TUNE_CACHE
    HEARTH_TUNE_CACHE=$(dirname "$run")/tune-$2.txt
    if [[ -e $run/config.toml ]] && compgen -G "$run/checkpoints/step-*/" >/dev/null; then
        start=(--resume --run "$run")
    else
        rm -rf "$run"
        sets "${quality[@]}" "${quality_data[@]}" train.device="$device" train.precision="$2" train.steps="$quality_steps" \
            train.seed=1 data.seed="$3" watch.terminal=off
        start=("$work/quality/base.toml" --run "$run" "${words[@]}")
    fi
    # Asked to stop while there is time to write a checkpoint.
    seconds=$(($(time_left) - quality_saving))
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

quality_case() { # MODEL PRECISION SEED
    local name="quality, $1, $2, order $3" run patience=3600
    run=$(quality_folder "$1")/$2-$3
    quality_keys "$1"
    if quality_ended "$run"; then
        note "$name" ok "$(quality_loss "$run"), in an earlier call"
    else
        check "$name" "$(pick 45 20)" quality_run "$run" "$2" "$3" # a part of a run is worth having
    fi
}

quality_data_keys() { # sets `quality_data`
    local folder folders=() paths=
    IFS=: read -r -a folders <<<"${HEARTH_DATA:-}"
    for folder in "${folders[@]}"; do
        if [[ ! -d $folder ]]; then return 1; fi
        paths+=${paths:+, }\"$(cd "$folder" && pwd)\"
    done
    quality_data=("data.train=[$paths]")
    if [[ -n ${HEARTH_WEIGHTS:-} ]]; then quality_data+=("data.weights=[$HEARTH_WEIGHTS]"); fi
    [[ -n $paths ]]
}

part_quality() {
    local precision seed model
    if ! quality_data_keys; then
        note "quality" SKIPPED "HEARTH_DATA names no dataset"
        return
    fi
    mkdir -p "$work/quality/experts"
    : >"$work/quality/base.toml"
    for seed in 1 2 3; do
        for precision in bf16 fp8; do quality_case dense "$precision" "$seed"; done
    done
    for precision in bf16 fp8; do quality_case experts "$precision" 1; done
    quality_case dense fp16 1
    for model in dense experts; do
        quality_keys "$model"
        check "quality, $model" 1 runs quality "$(quality_folder "$model")" "$quality_steps"
    done
}
