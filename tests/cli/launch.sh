#!/usr/bin/env bash
# --ranks: the command runs once per rank under mpirun; its exit code and signals are those of the ranks.
# usage: launch.sh HEARTH
set -u
hearth=$1
failures=0
folder=$(mktemp -d /tmp/hearth-launch-XXXXXX)
trap 'rm -rf "$folder"' EXIT
bench=(bench comm --sizes 4K --seconds 0.01 --print --device cpu)

check() { # check WHAT COMMAND...
    local what=$1
    shift
    if "$@"; then
        echo "ok     $what"
    else
        echo "FAILED $what"
        cat "$folder"/out "$folder"/err 2>/dev/null | sed 's/^/    /'
        failures=$((failures + 1))
    fi
}

"$hearth" "${bench[@]}" --ranks 3 --json >"$folder/out" 2>"$folder/err"
code=$?
check "the ranks run and end well" test $code = 0
check "as many as asked for" grep -q '"ranks": 3, "hosts": 1, "backend": "mpi"' "$folder/out"
check "one of them prints" test "$(wc -l <"$folder/out")" = 1
check "and nobody complains" test ! -s "$folder/err"

"$hearth" bench comm --ranks 2 --device nonsense --print >"$folder/out" 2>"$folder/err"
check "an error of the ranks is the error of the job" test $? = 2
check "and is printed once" test "$(grep -c 'hearth: error' "$folder/err")" = 1

"$hearth" bench comm --ranks 2 --out "$folder/machine.toml" --sizes 1K,64K --seconds 0.01 --device cpu >"$folder/out" 2>"$folder/err"
check "the profile gets the links" grep -q '^link_bus_GBps = ' "$folder/machine.toml"
HEARTH_MACHINE=$folder/machine.toml "$hearth" plan smollm-360m --set train.device=cpu >"$folder/out" 2>"$folder/err"
check "and the planner reads it" test $? = 0

HEARTH_MPIRUN=/nowhere/mpirun "$hearth" "${bench[@]}" --ranks 2 >"$folder/out" 2>"$folder/err"
check "a launcher that is not there is named" grep -q 'cannot start /nowhere/mpirun' "$folder/err"
HEARTH_MPIRUN=mpirun "$hearth" "${bench[@]}" --ranks 2 >"$folder/out" 2>"$folder/err"
check "a launcher may be named as the PATH finds it" test $? = 0
OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 "$hearth" "${bench[@]}" --ranks 3 >"$folder/out" 2>"$folder/err"
check "a launcher with another number of ranks is refused" grep -q -- '--ranks is 3, but mpirun has started 2' "$folder/err"
WORLD_SIZE=4 "$hearth" "${bench[@]}" >"$folder/out" 2>"$folder/err"
check "WORLD_SIZE without a launcher is refused" grep -q 'WORLD_SIZE is 4, but this process was started alone' "$folder/err"

RANK=1 "$hearth" "${bench[@]}" >"$folder/out" 2>"$folder/err"
check "and so is another RANK than that of one process" grep -q 'RANK is 1 in the environment, but this process is 0' "$folder/err"
SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_LOCALID=0 "$hearth" "${bench[@]}" >"$folder/out" 2>"$folder/err"
check "srun without PMIx is noticed" grep -q 'srun has started 4 ranks, but MPI finds 1' "$folder/err"

timeout -s KILL 60 env --ignore-signal=CHLD "$hearth" "${bench[@]}" --ranks 2 >"$folder/out" 2>"$folder/err"
check "who was started with SIGCHLD ignored hears of the end all the same" test $? = 0

mkdir "$folder/sessions"
printf '#!/bin/sh\necho "$OMPI_MCA_orte_tmpdir_base" >>"%s"\nexec mpirun "$@"\n' "$folder/used" >"$folder/launcher"
chmod +x "$folder/launcher"
jobs=()
for i in 1 2 3 4; do
    HEARTH_MPIRUN=$folder/launcher TMPDIR=$folder/sessions "$hearth" "${bench[@]}" --ranks 2 >"$folder/out.$i" 2>"$folder/err.$i" &
    jobs+=($!)
done
bad=0
for job in "${jobs[@]}"; do wait "$job" || bad=$((bad + 1)); done
check "jobs that begin together do not disturb each other" test $bad = 0
check "each in a folder of its own" test "$(grep "^$folder/sessions/hearth-ranks-" "$folder/used" | sort -u | wc -l)" = 4
check "of which nothing is left" test -z "$(ls "$folder/sessions")"

# A signal to the parent goes to the ranks. env -i style background jobs ignore SIGINT in a script, so SIGTERM.
"$hearth" bench comm --ranks 2 --sizes 4K --seconds 30.$$ --print --device cpu >"$folder/out" 2>"$folder/err" &
parent=$!
for _ in $(seq 100); do
    ranks=$(pgrep -f "[b]ench comm --ranks 2 --sizes 4K --seconds 30.$$" | grep -cv "^$parent\$")
    if [[ $ranks -ge 3 ]]; then break; fi # mpirun and two ranks
    sleep 0.1
done
sleep 0.5
kill -TERM $parent
wait $parent
code=$?
check "a signal ends the ranks, and the exit code says so" test $code = 143
sleep 0.2
check "nobody is left" test -z "$(pgrep -f '[b]ench comm --ranks 2 --sizes 4K --seconds 30.'$$)"
[[ $failures == 0 ]]
