#pragma once
/// The entries of kernels/host, linked in: what every device kernel is compared with.

#include "kern/runtime/host_module.h"

#define KERN_HOST_TWIN(name) extern "C" void name(const kern_block*, void* const*)

KERN_HOST_TWIN(kern_rms);
KERN_HOST_TWIN(kern_land_rms);
KERN_HOST_TWIN(kern_mix_rms);
KERN_HOST_TWIN(kern_mix_rms_last);
KERN_HOST_TWIN(kern_embed);
KERN_HOST_TWIN(kern_copy_rows);
KERN_HOST_TWIN(kern_land);
KERN_HOST_TWIN(kern_land_add);
KERN_HOST_TWIN(kern_land_moe);
KERN_HOST_TWIN(kern_situ);
KERN_HOST_TWIN(kern_router);
KERN_HOST_TWIN(kern_moe_plan);
KERN_HOST_TWIN(kern_moe_gather);
KERN_HOST_TWIN(kern_moe_up);
KERN_HOST_TWIN(kern_moe_down);
KERN_HOST_TWIN(kern_moe_combine);
KERN_HOST_TWIN(kern_embed_fed);
KERN_HOST_TWIN(kern_keep);
KERN_HOST_TWIN(kern_join_columns);
KERN_HOST_TWIN(kern_sample);
KERN_HOST_TWIN(kern_kda_prep);
KERN_HOST_TWIN(kern_kda_recurrence);
KERN_HOST_TWIN(kern_kda_recurrence_snapshot);
KERN_HOST_TWIN(kern_kda_windows);
KERN_HOST_TWIN(kern_kda_windows_snapshot);
KERN_HOST_TWIN(kern_kda_out);
KERN_HOST_TWIN(kern_mla_prep);
KERN_HOST_TWIN(kern_mla_absorb);
KERN_HOST_TWIN(kern_mla_attend);
KERN_HOST_TWIN(kern_mla_merge);

#undef KERN_HOST_TWIN
