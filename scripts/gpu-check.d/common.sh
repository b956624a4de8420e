# What the parts of gpu-check share: the place where they work, the programs, and cases with a row in the table and a limit
# of time.
# shellcheck shell=bash disable=SC2154,SC2034 # the options are those of scripts/gpu-check; parts use what is set here

name_width=44

# ---- the place -------------------------------------------------------------------------------------------------------

work_open() {
    if [[ -n ${HEARTH_WORK:-} ]]; then
        mkdir -p "$HEARTH_WORK" || exit 1
        work=$(cd "$HEARTH_WORK" && pwd)
    else
        work=$(mktemp -d "${TMPDIR:-/tmp}/hearth-gpu-check.XXXXXX") || exit 1
    fi
    if [[ -n $out ]]; then
        mkdir -p "$out" || exit 1
        out=$(cd "$out" && pwd)
    fi
    table=$work/table.txt
    jobs=$work/jobs # a file for each group of processes that runs
    rm -rf "$jobs" "$work/speed"
    mkdir -p "$jobs"
    : >"$table"
    trap work_close EXIT
    trap 'exit 130' INT TERM HUP
    # Runs of a check neither learn from others nor teach them, and have the catalogue of this checkout.
    export HEARTH_HISTORY='' HEARTH_HARDWARE=$PWD/configs/hardware.toml
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PYTHONDONTWRITEBYTECODE=1
    export HEARTH_TUNE_CACHE=$work/tune.txt
}

work_close() {
    local job
    for job in "$jobs"/*; do
        if [[ $job =~ /([0-9]+)$ ]]; then kill -KILL -- "-${BASH_REMATCH[1]}" 2>/dev/null; fi
    done
    keep
    if [[ -n ${HEARTH_WORK:-} ]] || { failed && [[ -z $out ]]; }; then
        echo "logs: $work"
    else
        rm -rf "$work"
    fi
    if [[ -n $out ]]; then echo "logs: $out"; fi
}

keep() { # what people read goes to --out; weights, data and programs do not
    if [[ -z $out ]]; then return; fi
    (cd "$work" && find . -type f -size -16M \
        \( -name '*.log' -o -name '*.txt' -o -name '*.html' -o -name 'metrics.jsonl' -o -name 'alarms.jsonl' -o -name '*.toml' \
        -o -path '*/profile/*' -o -name 'environment.json' -o -name 'plan.json' -o -name speed \) \
        -not -path './bin/*' -not -path './data/*' -print0 | tar -cf - --null -T -) | tar -xf - -C "$out"
}

describe_machine() {
    {
        "$hearth" --version
        uname -sr
        echo "$(nproc) cores"
        if [[ $device != cpu ]]; then
            nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader
        fi
    } >"$work/machine.txt" 2>&1
    head -n 1 "$work/machine.txt"
    if [[ $device != cpu ]]; then tail -n 1 "$work/machine.txt"; fi
}

# ---- programs --------------------------------------------------------------------------------------------------------

unxz_to() { # FILE TARGET: python3 has the decoder where there is no xz
    if command -v xz >/dev/null; then
        xz -dc "$1" >"$2"
    else
        python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$1" >"$2"
    fi
}

unpacked() { # FILE: the path of its content, which is elsewhere for FILE.xz
    local target
    if [[ $1 != *.xz ]]; then
        echo "$1"
        return
    fi
    target=$work/bin/unpacked-$(basename "${1%.xz}")
    mkdir -p "$work/bin"
    unxz_to "$1" "$target" && chmod +x "$target" && echo "$target"
}

programs_find() {
    bin=${HEARTH_BIN_DIR:-build}
    if [[ -z ${HEARTH_BIN_DIR:-} ]]; then
        echo "== building"
        scripts/build release || exit 1
    elif [[ -e $bin/programs.tar.xz ]]; then
        rm -rf "${work:?}/bin"
        mkdir -p "$work/bin"
        if ! unxz_to "$bin/programs.tar.xz" "$work/bin/programs.tar" || ! tar -xf "$work/bin/programs.tar" -C "$work/bin"; then
            echo "gpu-check: $bin/programs.tar.xz cannot be unpacked" >&2
            exit 1
        fi
        rm "$work/bin/programs.tar"
        bin=$work/bin
    fi
    hearth=$(program hearth)
    if [[ -z $hearth ]]; then
        echo "gpu-check: there is no program hearth in $bin" >&2
        exit 1
    fi
}

program() { # the path of a program, "" when it is not there
    local path
    for path in "$bin/$1" "$bin/tests/$1"; do
        if [[ -x $path ]]; then
            realpath "$path"
            return
        fi
    done
}

# ---- cases -----------------------------------------------------------------------------------------------------------

on_cpu() { [[ $device == cpu ]]; }
pick() { if on_cpu; then echo "$2"; else echo "$1"; fi; } # ON_GPU IN_A_REHEARSAL

failed() { grep -qs "^.\{$name_width,\} FAILED " "$table"; } # in the table, as checks may run in the background

note() { # NAME VERDICT DETAIL: a row of the table at the end
    printf "%-${name_width}s %-8s %s\n" "$1" "$2" "$3" | tee -a "$table"
}

time_left() {
    if ((limit)); then echo $((limit - SECONDS)); else echo 1000000; fi
}

fits() { # NAME SECONDS: whether a case may begin; if not, its row says so
    local rest
    rest=$(time_left)
    if ((rest >= $2)); then return 0; fi
    note "$1" SKIPPED "(time) it takes about $2 s, and $((rest > 0 ? rest : 0)) s are left"
    return 1
}

# Ends the command and what it has started when it takes longer than that: first politely, so that mpirun ends its ranks.
bounded() { # SECONDS COMMAND...: 124 when it was ended
    local seconds=$1 job guard code=0
    shift
    set -m # process groups of their own
    "$@" &
    job=$!
    : >"$jobs/$job"
    {
        sleep "$seconds"
        : >"$jobs/$job.late"
        kill -TERM -- "-$job"
        sleep 5
        kill -KILL -- "-$job"
    } 2>/dev/null &
    guard=$!
    set +m
    wait "$job" || code=$?
    { kill -KILL -- "-$guard" && wait "$guard"; } 2>/dev/null
    if [[ -e $jobs/$job.late ]]; then code=124; fi
    rm -f "$jobs/$job" "$jobs/$job.late"
    return "$code"
}

reason_of() { # LOG: its last line that tells of an error, or its last one
    { grep -E 'error:|MISS|FAILED|further apart' "$1" || tail -n 1 "$1"; } | tail -n 1 | cut -c 1-200
}

# The last line that the command prints is the row's detail; it returns 77, or says SKIPPED, where something that it needs is
# missing. What takes four times as long as it should has stopped, unless `patience` gives it more seconds.
check() { # NAME SECONDS COMMAND...: a case that takes so long on an H200
    local name=$1 seconds=$2 log code=0 most rest begin=$SECONDS
    log=${name//[^a-zA-Z0-9.]/-}.log
    shift 2
    if [[ -n $only && ! $name =~ $only ]]; then return 0; fi
    if ! fits "$name" "$seconds"; then return 0; fi
    most=${patience:-$(pick $((4 * seconds + 60)) 900)}
    rest=$(time_left)
    if ((rest < most)); then most=$rest; fi
    bounded "$most" "$@" </dev/null >"$work/$log" 2>&1 || code=$?
    if [[ $code == 0 && $(tail -n 1 "$work/$log") == SKIPPED* ]]; then code=77; fi
    case $code in
    0) note "$name" ok "$(tail -n 1 "$work/$log") [$((SECONDS - begin)) s]" ;;
    77) note "$name" SKIPPED "$(tail -n 1 "$work/$log")" ;;
    124) note "$name" FAILED "cut off after $most s, see ${out:-$work}/$log" ;;
    *) note "$name" FAILED "exit code $code: $(reason_of "$work/$log"), see ${out:-$work}/$log" ;;
    esac
    if ((code != 0 && code != 77)); then tail -n 15 "$work/$log" | sed 's/^/    /'; fi
}

# ---- runs of hearth --------------------------------------------------------------------------------------------------

synthetic_data() { # once: stories for everything that does not need text of people
    if [[ -e $work/data/dataset.json ]]; then return 0; fi
    rm -rf "$work/data"
    if ! "$hearth" data synth "$work/data" --stories "$(pick 3000 300)" --val-stories "$(pick 60 20)" >"$work/synth.log" 2>&1; then
        note "hearth data synth" FAILED "see $work/synth.log"
        tail -n 5 "$work/synth.log" | sed 's/^/    /'
        return 1
    fi
}

sets() { # KEY=VALUE...: sets `words` to options of hearth train
    local key
    words=()
    for key in "$@"; do words+=(--set "$key"); done
}

curve() { # RUN: step, loss and gradient norm as written: equal text is equal bits
    sed -n 's/.*"step":\([0-9]*\).*"loss":\([^,}]*\).*"grad_norm":\([^,}]*\).*/\1 \2 \3/p' "$1/metrics.jsonl"
}

runs() { python3 "$here/runs.py" "$@"; }
