// SPDX-License-Identifier: Apache-2.0
#include "aggregate/stack_partings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>

namespace presum::aggregate {
namespace {

constexpr std::size_t kPlacesMax = 64;  // maximum number of distinct places to compare
constexpr std::string_view kLeftOut = "...";

// Returns "step() of train.py:88" for "/a/train.py:88 step": file locations differ between hosts.
std::string text_of(std::string_view frame) {
  const std::size_t space = frame.rfind(' ');
  if (space == std::string_view::npos) return std::string(frame);
  const std::string_view function = frame.substr(space + 1);
  std::string_view line = frame.substr(0, space);
  line.remove_prefix(line.rfind('/') + 1);
  return function.starts_with('<') ? std::string(line) : fmt::format("{}() of {}", function, line);
}

// Outermost first.
std::vector<std::string> frames_of(std::string_view stack) {
  std::vector<std::string> out;
  while (!stack.empty()) {
    const std::size_t end = std::min(stack.find('\n'), stack.size());
    out.push_back(text_of(stack.substr(0, end)));
    stack.remove_prefix(std::min(end + 1, stack.size()));
  }
  std::ranges::reverse(out);
  return out;
}

class PlacedStack {
 public:
  explicit PlacedStack(const ThreadPlace& place) : place_(&place), frames_(frames_of(place.stack)) {
    const auto found = std::find(frames_.rbegin(), frames_.rend(), place.site);
    if (found != frames_.rend()) {
      site_at_ = static_cast<std::size_t>(frames_.rend() - found) - 1;
    }
  }

  bool stands_apart_from(const PlacedStack& other) const {
    const bool told = place_->doing != other.place_->doing;
    return site_at_ && other.site_at_ && place_->site == other.place_->site &&
           frames_ != other.frames_ && (told || (place_->asleep && other.place_->asleep));
  }
  // Number of outer frames that both have.
  std::size_t shared_with(const PlacedStack& other) const {
    const std::size_t most = std::min(frames_.size(), other.frames_.size());
    std::size_t n = 0;
    while (n < most && frames_[n] == other.frames_[n] && frames_[n] != kLeftOut) ++n;
    return n;
  }
  void parts_at(std::size_t depth) { parting_ = std::max(parting_.value_or(0), depth); }

  // `as_it_is`: the frame may be one that only its own module calls.
  std::string site(bool as_it_is) const {
    const std::string& site = place_->site;
    if (!parting_ || !site_at_ || *parting_ == *site_at_) return site;
    const std::size_t at = std::min(*parting_, frames_.size() - 1);
    if (frames_[at] == kLeftOut) return site;
    if (*parting_ < *site_at_) return fmt::format("{}, called from {}", site, frames_[at]);
    if (at == *site_at_) return site + " itself";
    return fmt::format("{}, in {}", site, frames_[as_it_is ? at : public_from(at)]);
  }

 private:
  std::size_t public_from(std::size_t at) const {
    for (std::size_t i = at; i < frames_.size(); ++i) {
      if (!frames_[i].starts_with('_')) return i;
    }
    return at;
  }

  const ThreadPlace* place_;
  std::vector<std::string> frames_;
  std::optional<std::size_t> site_at_;
  // the depth of the frame at which it diverges from another stack
  std::optional<std::size_t> parting_;
};

template <class Visit>
void for_pairs_apart(std::vector<PlacedStack>& stacks, Visit&& visit) {
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (stacks[i].stands_apart_from(stacks[j])) visit(i, j);
    }
  }
}

std::vector<std::string> texts_of(std::vector<PlacedStack>& stacks) {
  for_pairs_apart(stacks, [&](std::size_t i, std::size_t j) {
    const std::size_t depth = stacks[i].shared_with(stacks[j]);
    stacks[i].parts_at(depth);
    stacks[j].parts_at(depth);
  });
  std::vector<std::string> out;
  out.reserve(stacks.size());
  for (const PlacedStack& s : stacks) out.push_back(s.site(false));
  bool same = false;
  for_pairs_apart(stacks, [&](std::size_t i, std::size_t j) { same = same || out[i] == out[j]; });
  for (std::size_t i = 0; same && i < stacks.size(); ++i) out[i] = stacks[i].site(true);
  return out;
}

}  // namespace

std::string_view without_call(std::string_view stack, std::string_view function,
                              std::string_view site) {
  std::string_view out = stack;
  while (!stack.empty()) {
    const std::size_t end = std::min(stack.find('\n'), stack.size());
    const std::string_view frame = stack.substr(0, end);
    stack.remove_prefix(std::min(end + 1, stack.size()));
    if (text_of(frame) == site) break;
    if (frame.substr(frame.rfind(' ') + 1) == function) out = stack;
  }
  return out;
}

std::vector<std::string> sites_apart(const std::vector<ThreadPlace>& places) {
  std::map<ThreadPlace, std::size_t> numbers;
  std::vector<PlacedStack> stacks;
  for (const ThreadPlace& p : places) {
    if (stacks.size() == kPlacesMax) break;
    if (numbers.try_emplace(p, stacks.size()).second) stacks.emplace_back(p);
  }
  const std::vector<std::string> texts = texts_of(stacks);
  std::vector<std::string> out;
  out.reserve(places.size());
  for (const ThreadPlace& p : places) {
    const auto number = numbers.find(p);
    out.push_back(number == numbers.end() ? p.site : texts[number->second]);
  }
  return out;
}

}  // namespace presum::aggregate
