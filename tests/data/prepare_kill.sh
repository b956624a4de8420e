#!/usr/bin/env bash
# kill -9 at random times, at least ten of them: resuming must give the same bytes as a run that was left alone.
# Then with --overwrite: after each kill there must also be a whole dataset, the old or the new one, or work to resume.
# usage: prepare_kill.sh HEARTH
set -u
hearth=$1
folder=$(mktemp -d /tmp/hearth-kill-XXXXXX)
trap 'rm -rf "$folder"' EXIT
RANDOM=${HEARTH_KILL_SEED:-7}

awk 'BEGIN { srand(3); for (d = 0; d < 24000; d++) { n = 20 + int(rand() * 180); s = "document " d;
     if (d % 11 == 10) { print last; continue }
     for (i = 0; i < n; i++) s = s " w" int(rand() * rand() * 4000); last = "{\"text\": \"" s "\"}"; print last } }' \
    >"$folder/corpus.jsonl"

# prepare FOLDER [option]. Called in a subshell, whose process it then is: so the kill hits the program itself.
prepare() {
    exec "$hearth" data prepare --tokenizer bytes --dedup exact --train-tokens 9M --val-tokens 300K --test-tokens 200K \
        --shard-tokens 2M --unit-mb 1 --quiet --output "$@" "$folder/corpus.jsonl" >"$folder/log" 2>&1
}

sums() { (cd "$1" && find . -type f | sort | xargs sha256sum); }

start=$(date +%s%N)
(prepare "$folder/alone") || { cat "$folder/log"; exit 1; }
whole=$((($(date +%s%N) - start) / 1000000)) # milliseconds
alone=$whole
sums "$folder/alone" >"$folder/expected"
kills=0
for round in $(seq 40); do
    if [ "$round" -gt 10 ] && [ "$kills" -ge 10 ]; then break; fi
    rounds=$round
    out=$folder/round$round
    for try in $(seq 8); do
        (prepare "$out") &
        pid=$!
        sleep "$(awk -v ms=$((RANDOM % (whole + 1))) 'BEGIN { print ms / 1000 }')"
        if kill -9 $pid 2>/dev/null; then
            kills=$((kills + 1))
        else
            whole=$((whole * 3 / 4 + 1)) # it is faster now: the machine had other work when the time was taken
        fi
        wait $pid 2>/dev/null
        [ -f "$out/dataset.json" ] && [ ! -d "$out/work" ] && break
    done
    (prepare "$out") || { cat "$folder/log"; exit 1; }
    sums "$out" >"$folder/actual"
    if ! cmp -s "$folder/expected" "$folder/actual"; then
        echo "round $round: the result differs from an uninterrupted run"
        diff "$folder/expected" "$folder/actual"
        exit 1
    fi
    rm -rf "$out"
done

head -n 500 "$folder/corpus.jsonl" >"$folder/small.jsonl"
"$hearth" data prepare --tokenizer bytes --val-tokens 10K --quiet --output "$folder/old" "$folder/small.jsonl" \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
for round in $(seq 10); do
    out=$folder/over$round
    cp -r "$folder/old" "$out"
    option=--overwrite
    for try in $(seq 3); do
        (prepare "$out" $option) &
        pid=$!
        sleep "$(awk -v ms=$((RANDOM % (alone + 1))) 'BEGIN { print ms / 1000 }')"
        kill -9 $pid 2>/dev/null
        wait $pid 2>/dev/null
        if ! "$hearth" data inspect "$out" >/dev/null 2>"$folder/log" && [ ! -f "$out/work/unit-000000" ]; then
            echo "overwrite, round $round: neither a dataset nor work to resume"
            cat "$folder/log"
            exit 1
        fi
        if [ -f "$out/work/replaces" ]; then option=; fi # what --overwrite began needs no second one
    done
    (prepare "$out" $option) || { cat "$folder/log"; exit 1; }
    sums "$out" >"$folder/actual"
    if ! cmp -s "$folder/expected" "$folder/actual"; then
        echo "overwrite, round $round: the result differs from an uninterrupted run"
        diff "$folder/expected" "$folder/actual"
        exit 1
    fi
    rm -rf "$out"
done
echo "$kills kills in $rounds rounds; every result was the same (a run takes at most some $whole ms)"
[ "$kills" -ge 10 ]
