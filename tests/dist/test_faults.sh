#!/usr/bin/env bash
# A job of four ranks in which one dies, stops, fails, is late, or differs: it ends within the limit (2 s for a
# collective and for the start; LIMIT leaves room for a loaded machine), with the right exit code, naming rank and cause;
# and the next job starts as if nothing had been.
# usage: test_faults.sh FAULT_RANKS; MPIRUN names the launcher
set -u
program=$1
mpirun=${MPIRUN:-mpirun}
limit=30
failures=0
log=$(mktemp /tmp/hearth-faults-XXXXXX)
trap 'rm -f "$log"' EXIT

# expect CODE TEXT... -- MODE [RANK]: CODE may be "any" for one that is not 0. A text that starts with ! must not be there.
expect() {
    local code=$1 found start text
    local -a texts=()
    shift
    while [[ $1 != -- ]]; do texts+=("$1"); shift; done
    shift
    start=$SECONDS
    timeout -k 5 $limit "$mpirun" -n 4 "$program" "$@" >"$log" 2>&1 </dev/null
    found=$?
    local wrong=""
    if [[ $code == any ]]; then
        [[ $found != 0 ]] || wrong="exit code 0"
    elif [[ $found != "$code" ]]; then
        wrong="exit code $found, not $code"
    fi
    [[ $found != 124 && $found != 137 || $SECONDS -lt $((start + limit)) ]] || wrong="it did not end within $limit s"
    for text in "${texts[@]}"; do
        if [[ $text == !* ]]; then
            ! grep -qF -- "${text#!}" "$log" || wrong+="${wrong:+; }\"${text#!}\" is in the output"
        else
            grep -qE -- "$text" "$log" || wrong+="${wrong:+; }no \"$text\" in the output"
        fi
    done
    if [[ -n $wrong ]]; then
        echo "FAILED $*: $wrong"
        sed 's/^/    /' "$log"
        failures=$((failures + 1))
    else
        echo "ok     $* ($((SECONDS - start)) s)"
    fi
}

once() { # once TEXT: it is in the output of the last job exactly once
    local count
    count=$(grep -cF -- "$1" "$log")
    if [[ $count != 1 ]]; then
        echo "FAILED: \"$1\" is $count times in the output"
        sed 's/^/    /' "$log"
        failures=$((failures + 1))
    fi
}

expect 0 '^fine$' '!error' -- fine
expect any 'rank 2( of 4 \(process [0-9]+ on [^)]*\) died| with PID)' -- kill 2
expect any 'rank 0( of 4 \(process [0-9]+ on [^)]*\) died| with PID)' -- kill 0
expect 0 '^fine$' '!error' -- fine
expect 1 'all_reduce [0-9]+ of dp has not ended within 2 s, at step 3' 'rank 2 of 4 .* is stopped \(SIGSTOP\)' \
    '!rank 1 of 4 (' '!rank 3 of 4 (' -- stop 2
once 'has not ended within'
expect 1 'all_reduce [0-9]+ of dp has not ended within 2 s, at step 3' 'rank 0 of 4 .* is stopped \(SIGSTOP\)' -- stop 0
expect 1 'all_reduce [0-9]+ of dp has not ended within 2 s, at step 3' \
    'rank 3 of 4 .* has not come to it: it computes; its last operation was all_reduce [0-9]+ of dp' -- absent 3
expect 1 'receive of dp with rank 2 has not ended within 2 s' 'rank 2 of 4' -- send 1
expect 1 'graph 1 of all ranks has not ended within 2 s' 'rank 1 of 4 .* has not come to it' -- enter 1
expect any 'rank 1 of 4 .* died without a message|exiting without calling "finalize"|without calling "finalize"' -- exit 1
expect 1 'hearth: error: rank 1 of 4 on [^:]*: the disk is full' 'make room' '!died' -- error 1
once 'the disk is full'
expect 2 'hearth: error: rank 0 of 4 on [^:]*: no such key' -- usage 0
expect 2 'hearth: error: wrong for all' -- all
once 'wrong for all'
expect 1 'the 4 ranks have not come together within 2 s: waiting for rank 2' -- late 2
expect 1 'the 4 ranks have not come together within 2 s: waiting for rank 0' -- late 0
expect 2 'another configuration than rank 0 on .*: rank 3 on' -- differ 3
once 'another configuration'
expect 2 'rank 2 of 4 on .*: RANK is 7 in the environment' -- contradiction 2
expect 0 '^fine$' '!error' -- fine

# Two jobs at once do not meet.
"$mpirun" -n 4 "$program" fine >"$log.a" 2>&1 </dev/null &
first=$!
"$mpirun" -n 4 "$program" fine >"$log.b" 2>&1 </dev/null || { echo "FAILED: the second of two jobs"; failures=$((failures + 1)); }
wait $first || { echo "FAILED: the first of two jobs"; failures=$((failures + 1)); }
rm -f "$log.a" "$log.b"
[[ $failures == 0 ]]
