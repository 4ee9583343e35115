// SPDX-License-Identifier: Apache-2.0
#include <presum/reduce.h>
#include <presum/run_log.h>
#include <presum/version.h>

#include <cstdio>

int main(int, char** given) {  // what presum's own flags would refuse
  const float parts[2][2] = {{1e8F, 1.0F}, {-1e8F, 2.0F}};
  const void* leaves[] = {parts[0], parts[1]};
  float sum[2];
  const bool added = bool(presum::reduce::exact(leaves, presum::Dtype::kF32, 2, 1, sum));
  const bool there = bool(presum::RunLog::open("no such run"));
  std::printf("%s %d %g %g %d\n", presum::version(), added, sum[0], sum[1], there);
}
