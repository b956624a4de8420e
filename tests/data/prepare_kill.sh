#!/usr/bin/env bash
# kill -9 at random times, at least ten of them: resuming must give the same bytes as a run that was left alone.
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

# Called in a subshell, whose process it then is: so the kill hits the program itself.
prepare() {
    exec "$hearth" data prepare --tokenizer bytes --dedup exact --train-tokens 9M --val-tokens 300K --test-tokens 200K \
        --shard-tokens 2M --unit-mb 1 --quiet --output "$1" "$folder/corpus.jsonl" >"$folder/log" 2>&1
}

sums() { (cd "$1" && find . -type f | sort | xargs sha256sum); }

start=$(date +%s%N)
(prepare "$folder/alone") || { cat "$folder/log"; exit 1; }
whole=$((($(date +%s%N) - start) / 1000000)) # milliseconds
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
echo "$kills kills in $rounds rounds; every result was the same (a run takes at most some $whole ms)"
[ "$kills" -ge 10 ]
