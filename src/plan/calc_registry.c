// The subjects of `hearth calc`, in the order in which --list shows them.
#include "plan/calc_rows.h"

const CalcSubject *const calc_subjects[] = {
    &calc_subject_throughput,  &calc_subject_flops,
    &calc_subject_params,      &calc_subject_batch,
    &calc_subject_schedule,    &calc_subject_data,
    &calc_subject_memory,      &calc_subject_precision,
    &calc_subject_collectives, &calc_subject_tensor_parallel,
    &calc_subject_pipeline,    &calc_subject_checkpointing,
    &calc_subject_cost,
};
const int calc_subject_count = (int)(sizeof calc_subjects / sizeof calc_subjects[0]);
