# Several ranks on the one GPU against one rank with the same batch: each step's loss and gradient norm. Ranks that share a
# GPU take turns, so their times say nothing.
#
# Bounds on relative differences, those of tests/ranks and their reasons:
#   fp32  loss 1e-6 (16 u with u = 2^-24, over the few roundings of a mean of logarithms), norm 1e-5 (168 u: sums over
#         thousands of terms, layer by layer). With experts, a token whose choice is on the edge may fall the other way and
#         then has another loss, by at most a tenth of it: loss 1e-6 + 0.1 / tokens, norm 1e-5 + 1 / tokens of a step.
#   fp16  loss 2e-5 under data parallelism, where only orders of sums differ until a weight falls to its other neighbour;
#         norm 2^-12, half a step of the type.
#   bf16  three bits fewer, so 8 times fp16's. Where products are parts of a sum, each rounded on its own (context
#         parallelism), 2e-4 in fp16: loss 1.6e-3, norm 2^-9.
#   fp8   as bf16 under data parallelism and ZeRO 3: scales do not depend on ranks.
# shellcheck shell=bash disable=SC2154

rank_steps=3

rank_models() { # sets the keys of the models: heads that 2 and 4 divide, and as many layers as stages and chunks need
    dense=(model.preset=smollm-360m model.heads=16 model.kv_heads=4 model.head_dim=64 model.layers=8)
    experts=(model.preset=qwen3-moe-500m model.layers=6)
    # At the others' rate its loss jumps up and down, and what bf16 rounds otherwise in one step is ten times as much in the next.
    long=(model.preset=llama-3.2-1b train.seq=8192 train.micro_batch=1 train.grad_accum=2 optimizer.lr=1e-5)
    rank_seq=512
    if on_cpu; then
        dense=(model.preset=demo-llama model.vocab=1024 model.heads=8 model.kv_heads=4 model.head_dim=16 model.layers=8)
        experts=(model.preset=demo-moe model.vocab=1024 model.layers=2)
        long=(model.preset=demo-llama model.vocab=1024 train.seq=128 train.micro_batch=1 train.grad_accum=2)
        rank_seq=32
    fi
    cat >"$work/ranks/base.toml" <<TOML
[data]
train = ["$work/data"]
[train]
seq = $rank_seq
micro_batch = $(pick 4 2)
grad_accum = 4
device = "$device"
steps = $rank_steps
[optimizer]
lr = 1e-4
[schedule]
kind = "constant"
warmup_steps = 0
[checkpoint]
every = 0
at_end = false
[eval]
at_end = false
[watch]
terminal = "off"
TOML
}

ranks_train() { # BACKEND RANKS RUN KEY=VALUE...
    local backend=$1 count=$2 run=$3 launcher=()
    local -x HEARTH_THREADS TMPDIR=${TMPDIR:-/tmp}
    HEARTH_THREADS=$(pick 2 1)
    if ((count > 1)); then
        TMPDIR=$(mktemp -d "$work/mpi.XXXXXX") # of several mpirun in one folder, one that ends takes it from the others
        launcher=(mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n "$count")
    else
        HEARTH_THREADS=$(pick 4 1)
    fi
    if [[ $backend == nccl ]]; then
        local -x NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_DEBUG=WARN LD_LIBRARY_PATH=${nccl_path:+$nccl_path:}${LD_LIBRARY_PATH:-}
    fi
    rm -rf "$run"
    sets "${@:4}"
    "${launcher[@]}" "$hearth" train "$work/ranks/base.toml" --run "$run" "${words[@]}"
}

reference_run() { # NAME KEY=VALUE...: of one rank
    ranks_train self 1 "$work/ranks/$1" "${@:2}" || return 1
    curve "$work/ranks/$1" | tail -n 1 | awk '{ print "loss " $2 ", norm " $3 " at step " $1 }'
}

ranks_near() { # BACKEND RANKS NAME REFERENCE LOSS_BOUND NORM_BOUND KEY=VALUE...
    local run=$work/ranks/$1-$3
    if [[ ! -e $work/ranks/$4/metrics.jsonl ]]; then
        echo "one rank's run, $4, is not there"
        return 77
    fi
    ranks_train "$1" "$2" "$run" "${@:7}" || return 1
    runs near "$work/ranks/$4" "$run" "$rank_steps" "$5" "$6"
}

nccl_probe() { # two ranks of one layer
    synthetic_data || return 1
    ranks_train nccl 2 "$work/ranks/probe" "${dense[@]}" model.layers=1 train.precision=fp32 parallelism.data=2 \
        train.grad_accum=2
}

nccl_ready() { # whether ranks that share a GPU can be connected; sets nccl_path
    local log=$work/ranks/nccl-probe.log
    nccl_path=
    if on_cpu; then
        note "ranks over NCCL" SKIPPED "NCCL connects GPUs"
        return 1
    fi
    if [[ -n ${HEARTH_NCCL:-} ]]; then
        nccl_path=$(cd "$HEARTH_NCCL" && pwd) || nccl_path=
        if [[ -e $nccl_path/libnccl.so.2.xz && ! -e $nccl_path/libnccl.so.2 ]]; then
            mkdir -p "$work/bin/nccl"
            unxz_to "$nccl_path/libnccl.so.2.xz" "$work/bin/nccl/libnccl.so.2"
            nccl_path=$work/bin/nccl
        fi
    fi
    if ! fits "ranks over NCCL" 30; then return 1; fi
    if bounded 60 nccl_probe </dev/null >"$log" 2>&1; then return 0; fi
    note "ranks over NCCL" SKIPPED "it does not connect two ranks on one GPU; HEARTH_NCCL=DIR names a newer one: $(
        grep -m 1 -iE 'error|nccl' "$log" | cut -c 1-160
    )"
    return 1
}

# BACKEND, then as many cases at a time: each is a line of ranks, name, reference, bounds and keys.
rank_cases() {
    local backend=$1 at_once=$2 count name reference loss norm keys running=0
    local one=parallelism.data=1 edge_loss edge_norm
    local tokens=$((rank_seq * 4 * $(pick 4 2)))
    edge_loss=$(awk -v t="$tokens" 'BEGIN { print 1e-6 + 0.1 / t }')
    edge_norm=$(awk -v t="$tokens" 'BEGIN { print 1e-5 + 1 / t }')
    while read -r count name reference loss norm keys; do
        if [[ -z $count ]]; then continue; fi
        if ((running == at_once)); then
            wait -n
            running=$((running - 1))
        fi
        # shellcheck disable=SC2046,SC2086 # keys are words
        check "${name//_/ } over $backend" "$(pick 15 5)" ranks_near "$backend" "$count" "$name" "$reference" "$loss" "$norm" \
            $(model_keys "$reference") $keys &
        running=$((running + 1))
    done <<CASES
2 dp_2 dense 1e-6 1e-5 parallelism.data=2 train.grad_accum=2
4 dp_4 dense 1e-6 1e-5 parallelism.data=4 train.grad_accum=1
2 ZeRO_3_x_2 dense 1e-6 1e-5 parallelism.data=2 parallelism.zero=3 train.grad_accum=2
4 ZeRO_3_x_4 dense 1e-6 1e-5 parallelism.data=4 parallelism.zero=3 train.grad_accum=1
2 tp_2 dense 1e-6 1e-5 $one parallelism.tensor=2
4 tp_4 dense 1e-6 1e-5 $one parallelism.tensor=4
2 pp_2 dense 1e-6 1e-5 $one parallelism.pipeline=2
4 pp_4 dense 1e-6 1e-5 $one parallelism.pipeline=4
2 pp_2_interleaved dense 1e-6 1e-5 $one parallelism.pipeline=2 parallelism.schedule=interleaved parallelism.virtual_stages=2
4 pp_4_interleaved dense 1e-6 1e-5 $one parallelism.pipeline=4 parallelism.schedule=interleaved parallelism.virtual_stages=2
2 ep_2 experts $edge_loss $edge_norm parallelism.data=2 parallelism.expert=2 train.grad_accum=2
4 ep_4 experts $edge_loss $edge_norm parallelism.data=4 parallelism.expert=4 train.grad_accum=1
2 cp_2_fp32 long 1e-6 1e-5 $one parallelism.context=2
2 cp_2_bf16 long-bf16 1.6e-3 2e-3 $one parallelism.context=2
2 dp_2_fp16 dense-fp16 2e-5 2.5e-4 parallelism.data=2 train.grad_accum=2
2 dp_2_fp8 dense-fp8 1.6e-4 2e-3 parallelism.data=2 train.grad_accum=2
2 ZeRO_3_x_2_fp8 dense-fp8 1.6e-4 2e-3 parallelism.data=2 parallelism.zero=3 train.grad_accum=2
CASES
    wait
}

model_keys() { # REFERENCE
    case $1 in
    dense) echo "${dense[@]}" train.precision=fp32 ;;
    dense-fp16 | dense-fp8) echo "${dense[@]}" train.precision="${1#dense-}" ;;
    experts) echo "${experts[@]}" train.precision=fp32 ;;
    long) echo "${long[@]}" train.precision=fp32 model.layers="$(pick 8 2)" ;;
    long-bf16) echo "${long[@]}" train.precision=bf16 ;;
    esac
}

part_ranks() {
    local name
    if ! command -v mpirun >/dev/null; then
        note "ranks" SKIPPED "mpirun is not installed"
        return
    fi
    rm -rf "$work/ranks"
    mkdir -p "$work/ranks"
    rank_models
    synthetic_data || return
    for name in dense dense-fp16 dense-fp8 experts long long-bf16; do
        # shellcheck disable=SC2046 # keys are words
        check "one rank, $name" "$(pick 20 5)" reference_run "$name" $(model_keys "$name") &
    done
    wait
    rank_cases mpi 3 &
    if nccl_ready; then rank_cases nccl 1; fi # kernels that wait for each other must be on the GPU at the same time
    wait
}
