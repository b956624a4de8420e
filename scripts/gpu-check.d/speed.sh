# Times of training steps, each alone on the GPU: five models in bf16 and FP8, TF32 against fp32; beside an older hearth and
# a peer where these are given, in turn within minutes, as clocks and temperature change.
# shellcheck shell=bash disable=SC2154

field() { # LINE KEY: a number of a line of JSON
    sed -n "s/.*\"$2\": *\([0-9.e+-]*\).*/\1/p" <<<"$1"
}

median() { # of numbers on lines
    sort -g | awk '{ value[NR] = $1 } END { if (NR) print (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }'
}

bench_words() { # MODEL SEQ MICRO_BATCH ACCUM OPTIONS...: sets `command` but for the program
    command=(bench step --model "$1" --seq "$2" --micro-batch "$3" --accum "$4" --device "$device" --steps "$(pick 6 1)" "${@:5}")
}

speed_row() { # LABEL LINE: of the table of speeds
    printf '%-44s %10.0f %10.1f %7.1f%% %9.1f\n' "$1" "$(field "$2" tok_s)" "$(field "$2" step_ms)" \
        "$(awk -v m="$(field "$2" mfu)" 'BEGIN { print 100 * m }')" "$(field "$2" memory_used_gib)" >>"$work/speed"
}

# Old and new in turn. Clocks move both alike; what is left between medians of a few is a third of a percent.
bench_turns() { # LABEL: `command`, run by the old hearth too where there is one
    local round name line
    mkdir -p "$work/bench"
    rm -f "$work/bench/$1".*.txt
    for ((round = 1; round <= rounds; round++)); do
        for name in ${old_hearth:+old} new; do
            if [[ $name == old ]]; then line=$("$old_hearth" "${command[@]}"); else line=$("$hearth" "${command[@]}"); fi
            if [[ -z $(field "$line" tok_s) ]]; then
                echo "the $name hearth gives no speed"
                return 1
            fi
            echo "$name $line"
            field "$line" tok_s >>"$work/bench/$1.$name.txt"
        done
    done
    speed_row "$1" "$line"
    if [[ -z $old_hearth ]]; then
        printf '%.0f tok/s\n' "$(median <"$work/bench/$1.new.txt")"
        return
    fi
    awk -v new="$(median <"$work/bench/$1.new.txt")" -v old="$(median <"$work/bench/$1.old.txt")" -v rounds="$rounds" 'BEGIN {
        printf "%.0f tok/s, the old one %.0f: %.3f times, medians of %d\n", new, old, new / old, rounds
        exit new < 0.99 * old }'
}

peer() { # LABEL MODEL SEQ MICRO_BATCH ACCUM PRECISION
    local lines best name=$2
    if [[ ! -e $work/bench/$1.new.txt ]]; then
        echo "hearth has no speed to compare with"
        return 77
    fi
    if [[ $name == qwen3-30b-a3b ]]; then name=$name-4l; fi
    lines=$(STEPS=6 COMPILE_BLOCKS=1 SDPA=CUDNN_ATTENTION FP8=${6/bf16/} python3 "$HEARTH_PEER" "$name:$3:$4:$5")
    echo "$lines"
    best=$(while read -r line; do field "$line" tok_s; done <<<"$lines" | sort -g | tail -n 1)
    if [[ -z $best ]]; then
        echo "the peer gives no speed"
        return 77
    fi
    awk -v own="$(median <"$work/bench/$1.new.txt")" -v peer="$best" 'BEGIN {
        printf "%.0f tok/s; hearth is %.3f times as fast\n", peer, own / peer }'
}

speed_case() { # PRECISION MODEL SEQ MICRO_BATCH ACCUM OPTIONS...
    local label="$2-$3-$4-$5-$1" benches=$rounds
    if [[ -n $old_hearth ]]; then benches=$((2 * rounds)); fi
    bench_words "${@:2:4}" --precision "$1" "${@:6}"
    check "speed, $2 $3/$4/$5 $1" $(($(pick 12 5) * benches)) bench_turns "$label"
    if [[ -n ${HEARTH_PEER:-} ]]; then
        check "speed, $2 $3/$4/$5 $1, peer" "$(pick 60 5)" peer "$label" "${@:2:4}" "$1"
    fi
}

part_speed() {
    local precision
    rounds=1 old_hearth=
    rm -rf "$work/bench"
    if [[ -n ${HEARTH_OLD:-} ]]; then
        old_hearth=$(unpacked "$HEARTH_OLD")
        rounds=${HEARTH_ROUNDS:-3}
        if ! "$old_hearth" --version >/dev/null 2>&1; then
            note "speed, the old hearth" FAILED "$HEARTH_OLD does not run"
            return
        fi
    fi
    local -x HEARTH_TUNE_CACHE=$work/tune-speed.txt # of races that nothing disturbed
    for precision in bf16 fp8; do
        if on_cpu; then
            speed_case "$precision" demo-llama 64 1 1
            continue
        fi
        speed_case "$precision" smollm-360m 512 64 8
        speed_case "$precision" smollm-360m 2048 16 8
        speed_case "$precision" llama-3.2-1b 4096 8 4
        speed_case "$precision" qwen3-moe-500m 4096 8 4
        speed_case "$precision" qwen3-30b-a3b 4096 4 2 --layers 4
    done
    tf32_speed
}

tf32_speed() {
    local shape=(smollm-360m 512 16 2) old_hearth='' rounds=1
    if on_cpu; then shape=(demo-llama 64 1 1); fi
    bench_words "${shape[@]}" --precision fp32
    check "speed, ${shape[0]} fp32" "$(pick 12 5)" bench_turns "${shape[0]}-fp32"
    if ! on_cpu; then command+=(--tf32); fi
    check "speed, ${shape[0]} TF32" "$(pick 12 5)" tf32_against_fp32 "${shape[0]}"
}

tf32_against_fp32() { # MODEL: an H200's tensor cores have 7 times the rate for TF32; less than 1.2 of a step is a key without effect
    bench_turns "$1-tf32" || return 1
    awk -v new="$(median <"$work/bench/$1-tf32.new.txt")" -v old="$(median <"$work/bench/$1-fp32.new.txt")" \
        -v least="$(pick 1.2 0)" 'BEGIN {
        if (!old) { print "there is no fp32 to compare with"; exit 77 }
        printf "%.0f tok/s, %.2f times fp32\n", new, new / old
        exit new < least * old }'
}
