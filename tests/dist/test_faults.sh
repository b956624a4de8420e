#!/usr/bin/env bash
# A job of four ranks in which one dies, stops, fails, is late, or differs: it ends within the limit (2 s for a
# collective and for the start; LIMIT leaves room for a loaded machine), with the right exit code, naming rank and cause;
# and the next job starts as if nothing had been.
# usage: test_faults.sh FAULT_RANKS death|stuck|failure|start|fine; MPIRUN names the launcher
set -u
program=$1
group=$2
mpirun=${MPIRUN:-mpirun}
limit=30
failures=0
log=$(mktemp /tmp/hearth-faults-XXXXXX)
trap 'rm -rf "$log"*' EXIT

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

death() {
    expect any 'rank 2( of 4 \(process [0-9]+ on [^)]*\) died| with PID)' -- kill 2
    expect any 'rank 0( of 4 \(process [0-9]+ on [^)]*\) died| with PID)' -- kill 0
    expect any 'rank 1( of 4 \(process [0-9]+ on [^)]*\) died| with PID)' -- exit 1
}

stuck() {
    local op='all_reduce [0-9]+ of dp has not ended within 2 s, at step 3'
    expect 1 "ranks 0, 1, 3 of 4: $op" 'rank 2 of 4 .* is stopped \(SIGSTOP\)' '!rank 1 of 4 (' '!rank 3 of 4 (' -- stop 2
    once 'has not ended within'
    expect 1 "$op" 'rank 0 of 4 .* is stopped \(SIGSTOP\)' '!died' -- stop 0
    once 'has not ended within'
    expect 1 "$op" 'rank 3 of 4 .* has not come to it: it was computing; its last operation was all_reduce [0-9]+ of dp' \
        '!rank 1 of 4 (' -- absent 3
    expect 1 'receive of dp with rank 2 has not ended within 2 s' 'rank 2 of 4 .* has not come to it' -- send 1
    expect 1 'graph 1 of all ranks has not ended within 2 s' 'rank 1 of 4 .* has not come to it' -- enter 1
}

failure() {
    expect 1 'hearth: error: rank 1 of 4 on [^:]*: the disk is full' 'make room' '!died' -- error 1
    once 'the disk is full'
    expect 2 'hearth: error: rank 0 of 4 on [^:]*: no such key' -- usage 0
    expect 2 'hearth: error: wrong for all' -- all
    once 'wrong for all'
    expect 2 'another configuration than rank 0 on .*: rank 3 on' -- differ 3
    once 'another configuration'
}

start() {
    expect 1 'the 4 ranks have not come together within 2 s: waiting for rank 2 ' -- late 2
    expect 1 'the 4 ranks have not come together within 2 s: waiting for rank 0 ' -- late 0
    expect 2 'rank 2 of 4 on .*: RANK is 7 in the environment' -- contradiction 2
}

fine() { # two jobs at once do not meet; mpirun itself does, in the folder of its own files, where both have the same one
    mkdir "$log.session"
    OMPI_MCA_orte_tmpdir_base=$log.session "$mpirun" -n 4 "$program" fine >"$log.a" 2>&1 </dev/null &
    local first=$!
    expect 0 '^fine$' '!error' -- fine
    wait $first || { cat "$log.a"; echo "FAILED: the first of two jobs"; failures=$((failures + 1)); }
    rm -f "$log.a"
}

"$group"
expect 0 '^fine$' '!error' -- fine # whatever was killed is in nobody's way
[[ $failures == 0 ]]
