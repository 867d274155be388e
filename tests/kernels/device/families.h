#pragma once
/// Every family of device kernels: its checks against the host twins, its byte equalities, its
/// benches. A new family is one file and one line here.

#include "suite.h"

namespace kern_device {

void norm_family(Suite& suite);
void act_family(Suite& suite);
void kda_family(Suite& suite);
void mla_family(Suite& suite);
void moe_family(Suite& suite);
void head_family(Suite& suite);

struct Family {
  const char* name;
  void (*run)(Suite& suite);
};

inline constexpr Family kFamilies[] = {
    {"norm", norm_family}, {"act", act_family}, {"kda", kda_family},
    {"mla", mla_family},   {"moe", moe_family}, {"head", head_family},
};

}  // namespace kern_device
