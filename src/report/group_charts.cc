// SPDX-License-Identifier: Apache-2.0
#include "report/group_charts.h"

#include <cmath>
#include <utility>

namespace presum::report {

GroupCharts::GroupCharts(const StepAxis& axis, std::vector<GroupInfo> groups) {
  for (GroupInfo& info : groups) {
    index_of_.emplace(info.id, groups_.size());
    groups_.push_back({.info = std::move(info), .lines = {Column(axis), Column(axis)}});
  }
}

void GroupCharts::add(std::size_t bucket, std::span<const GroupRecord> groups) {
  for (const GroupRecord& record : groups) {
    const auto known = index_of_.find(record.id);
    if (known == index_of_.end()) continue;
    Group& g = groups_[known->second];
    g.nonfinite += record.nonfinite;
    g.lines[0].add(bucket, record.norm_mean);
    g.lines[1].add(bucket, record.norm_std);
    if (!std::isfinite(record.norm_mean)) continue;
    g.norm_sum += record.norm_mean;
    ++g.count;
    if (!(record.norm_mean > 0) || !std::isfinite(record.norm_std)) continue;
    g.cv_sum += record.norm_std / record.norm_mean;
    ++g.cv_count;
  }
}

Json GroupCharts::json() const {
  Json out = Json::array();
  for (const Group& g : groups_) {
    out.push_back({{"name", g.info.name},
                   {"elements", g.info.elements},
                   {"norm", number(ratio(g.norm_sum, g.count), kTableDigits)},
                   {"cv", number(ratio(g.cv_sum, g.cv_count), kTableDigits)},
                   {"nonfinite", g.nonfinite},
                   {"norms", numbers(g.lines[0].rows())},
                   {"stds", numbers(g.lines[1].rows())}});
  }
  return out;
}

}  // namespace presum::report
