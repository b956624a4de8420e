// The way into one copy of this folder: what the copy chooses for itself, and every file's functions into the table.
#include "ops/cpu/cpu.h"
#include "ops/cpu/level.h"

Status CPU_INSTALL(Ops *ops) {
    TRY(cpu_gemm_start());
    cpu_install_attention(ops);
    cpu_install_cross_entropy(ops);
    cpu_install_elements(ops);
    cpu_install_embedding(ops);
    cpu_install_fp8(ops);
    TRY(cpu_install_gemm(ops));
    cpu_install_grouped(ops);
    cpu_install_moe(ops);
    cpu_install_norm(ops);
    cpu_install_optimizer(ops);
    cpu_install_rope(ops);
    cpu_install_swiglu(ops);
    return NULL;
}
