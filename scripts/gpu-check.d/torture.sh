# A training that is killed again and again, resumed each time: curve, checkpoints and weights are those of an undisturbed
# one, bit for bit. Several campaigns of tests/torture/run at a time: each process spends most of its life with CUDA's
# start. The trainings are longer than a CPU's, so that most kills come after it.
# shellcheck shell=bash disable=SC2154

torture() { # KILLS CAMPAIGNS MINUTES
    local i codes=0 each=$((($1 + $2 - 1) / $2)) pids=() logs=() sum
    for ((i = 1; i <= $2; i++)); do
        logs+=("$work/torture/seed-$i.log")
        HEARTH_TUNE_CACHE=$work/torture/tune-$i.txt tests/torture/run --device "$device" --program "$torture_program" \
            --subject train --only kill --only call --only signal --only stop --kills "$each" --minutes "$3" --seed "$i" \
            --stretch "$(pick 4 1)" >"$work/torture/seed-$i.log" 2>&1 &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || codes=1; done
    cat "${logs[@]}"
    sum=$(sed -n 's/^kills: \([0-9]*\) .*/\1/p' "${logs[@]}" | awk '{ sum += $1 } END { print sum + 0 }')
    if ((codes)); then return 1; fi
    if ((sum < $1)); then
        echo "(time) $sum of $1 kills, every result that of an undisturbed run"
        return 77
    fi
    echo "$sum kills, seeds 1 to $2: every curve and every checkpoint that of an undisturbed run"
}

part_torture() {
    local count seconds rest campaigns
    torture_program=$(program hearth_torture)
    if [[ -z $torture_program ]]; then
        note "killed at random" FAILED "hearth_torture is not in $bin"
        return
    fi
    mkdir -p "$work/torture"
    count=${kills:-$(pick 100 4)} campaigns=$(pick 6 1)
    seconds=$((30 + count * 6 / 5))
    rest=$(time_left)
    if ((rest > 600)); then rest=600; fi
    # A case that has begun is finished: a minute for that.
    check "killed at random" "$(pick "$seconds" 10)" torture "$count" "$campaigns" "$(awk -v s="$rest" 'BEGIN { print (s - 60) / 60 }')"
}
