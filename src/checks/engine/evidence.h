// SPDX-License-Identifier: Apache-2.0
// A rule's evidence as a struct: its fields are its only description, and become JSON. The end of a
// field's name is its unit: longer_ms, equal_share, off_sd (standard deviations).
//
//   struct Lost {
//     std::string layer;
//     std::uint64_t steps = 0;
//     static constexpr std::tuple kFields{field("layer", &Lost::layer),
//                                         field("steps", &Lost::steps)};
//   };
//   std::string sentence(const Lost& seen, const Who& who);
//
// The sentence uses these fields and the ranks, and nothing else.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "checks/engine/split.h"

namespace presum::checks {

// The ranks that a sentence is about.
struct Who {
  const Ranks& ranks;
  bool everyone;       // they are the whole data-parallel group
  bool in_job = true;  // and the group is the whole job, as far as known

  // "Rank 3", "Ranks 0-3,8", or "All 8 ranks" of the job.
  std::string words() const;
  // The same in the middle of a sentence.
  std::string within() const;
  // "The ranks", or those of a part of the job.
  std::string the_ranks() const;
};

template <class E, class T>
struct Field {
  std::string_view name;
  T E::*member;
};

// For a member, or a function without arguments that computes a text from members.
template <class E, class T>
constexpr Field<E, T> field(std::string_view name, T E::*member) {
  return {name, member};
}

template <class E>
concept HasFields = requires {
  E::kFields;
};

// A JSON object, written from front to back. Leaves out empty values: NaN, an empty text or list,
// none.
class JsonObject {
 public:
  void add(std::string_view name, double value);
  void add(std::string_view name, const std::string& value);
  void add(std::string_view name, const Ranks& value);
  void add(std::string_view name, const std::vector<std::string>& value);
  // Texts by name, as an object.
  void add(std::string_view name, const std::vector<std::pair<std::string, std::string>>& value);
  template <std::same_as<bool> T>
  void add(std::string_view name, T value) {
    put(name, value ? "true" : "false");
  }
  template <std::integral T>
  requires(!std::same_as<T, bool>) void add(std::string_view name, T value) {
    put(name, std::to_string(value));
  }
  template <class T>
  void add(std::string_view name, const std::optional<T>& value) {
    if (value) add(name, *value);
  }

  template <HasFields E>
  static std::string of(const E& evidence) {
    JsonObject out;
    std::apply(
        [&](const auto&... fields) {
          (out.add(fields.name, std::invoke(fields.member, evidence)), ...);
        },
        E::kFields);
    return "{" + out.text_ + "}";
  }

 private:
  void put(std::string_view name, const std::string& json);

  std::string text_;  // without its braces
};

// Evidence of any type. Copies share it; it is immutable.
class Evidence {
 public:
  Evidence() = default;
  template <HasFields E>
  Evidence(E seen) : seen_(std::make_shared<const Seen<E>>(std::move(seen))) {}

  // REQUIRES for these three: not default-constructed.
  std::string sentence(const Who& who) const { return seen_->sentence(who); }
  std::string json() const { return seen_->json(); }
  std::uint64_t key() const { return seen_->key(); }
  // The struct; null if it has another type.
  template <HasFields E>
  const E* as() const {
    const auto* seen = dynamic_cast<const Seen<E>*>(seen_.get());
    return seen == nullptr ? nullptr : &seen->evidence;
  }

 private:
  struct Any {
    virtual ~Any() = default;
    virtual std::string sentence(const Who& who) const = 0;
    virtual std::string json() const = 0;
    virtual std::uint64_t key() const = 0;
  };
  template <HasFields E>
  struct Seen final : Any {
    explicit Seen(E seen) : evidence(std::move(seen)) {}
    std::string sentence(const Who& who) const override;
    std::string json() const override { return JsonObject::of(evidence); }
    std::uint64_t key() const override;
    E evidence;
  };

  std::shared_ptr<const Any> seen_;
};

// Tells a check's kinds of evidence apart: by type and, if the type has one, its `key()`.
template <HasFields E>
std::uint64_t key_of(const E& seen) {
  static constexpr char kType = 0;  // its address identifies the type
  const auto type = reinterpret_cast<std::uintptr_t>(&kType);
  if constexpr (requires { seen.key(); }) {
    return mix64(type + mix64(static_cast<std::uint64_t>(seen.key())));
  } else {
    return mix64(type);
  }
}

template <HasFields E>
std::uint64_t Evidence::Seen<E>::key() const {
  return key_of(evidence);
}

template <HasFields E>
std::string sentence_of(const E& seen, const Who& who) {
  return sentence(seen, who);
}

template <HasFields E>
std::string Evidence::Seen<E>::sentence(const Who& who) const {
  return sentence_of(evidence, who);
}

}  // namespace presum::checks
