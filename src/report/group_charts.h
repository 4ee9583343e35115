// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "presum/run_log.h"
#include "report/axis.h"
#include "report/json.h"

namespace presum::report {

// Lines and table rows for the groups of one model in one segment. Steps must be added in ascending
// order. One thread at a time.
class GroupCharts {
 public:
  GroupCharts(const StepAxis& axis, std::vector<GroupInfo> groups);
  void add(std::size_t bucket, std::span<const GroupRecord> groups);
  Json json() const;

 private:
  struct Group {
    GroupInfo info;
    double norm_sum = 0, cv_sum = 0;
    std::uint64_t count = 0, cv_count = 0, nonfinite = 0;
    std::vector<Column> lines;  // norm mean, norm standard deviation
  };
  std::vector<Group> groups_;
  std::map<std::uint64_t, std::size_t> index_of_;  // by id
};

}  // namespace presum::report
