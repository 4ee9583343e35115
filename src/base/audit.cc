// SPDX-License-Identifier: Apache-2.0
#include "presum/audit.h"

#include <bit>

namespace presum {
namespace {

// Sent where distances are not known: a value that was left out would be taken for the last one.
constexpr std::uint64_t kUnknownUlps = ~std::uint64_t{0};

FingerprintValue fingerprint(FingerprintKind kind, std::uint64_t value) {
  return {static_cast<std::uint32_t>(kind), value};
}

const std::uint64_t* find(std::span<const FingerprintValue> all, FingerprintKind kind) {
  for (const FingerprintValue& f : all) {
    if (f.kind == static_cast<std::uint32_t>(kind)) return &f.value;
  }
  return nullptr;
}

std::optional<UlpPercentiles> ulps_of(std::span<const FingerprintValue> all) {
  const auto* p50 = find(all, FingerprintKind::kAuditUlps50);
  const auto* p90 = find(all, FingerprintKind::kAuditUlps90);
  const auto* p99 = find(all, FingerprintKind::kAuditUlps99);
  const auto* max = find(all, FingerprintKind::kAuditUlpsMax);
  if (p50 == nullptr || p90 == nullptr || p99 == nullptr || max == nullptr) return std::nullopt;
  if (*max == kUnknownUlps) return std::nullopt;
  return UlpPercentiles{*p50, *p90, *p99, *max};
}

// Byte `place` of the codes, if it is one of the enumeration's numbers up to `last`, else 0.
template <class Enum>
Enum code(std::uint64_t codes, int place, Enum last) {
  const auto number = static_cast<std::uint8_t>(codes >> (8 * place));
  return number <= static_cast<std::uint8_t>(last) ? static_cast<Enum>(number) : Enum{};
}

}  // namespace

const char* to_string(Accumulation accumulation) {
  switch (accumulation) {
    case Accumulation::kF64:
      return "fp64";
    case Accumulation::kF32:
      return "fp32";
    case Accumulation::kF16:
      return "fp16";
    case Accumulation::kBF16:
      return "bf16";
    case Accumulation::kUnknown:
      break;
  }
  return "unknown";
}

const char* to_string(SumOrder order) {
  switch (order) {
    case SumOrder::kAny:
      return "any";
    case SumOrder::kExact:
      return "exact";
    case SumOrder::kSequential:
      return "sequential";
    case SumOrder::kRing:
      return "ring";
    case SumOrder::kRingDown:
      return "ring-down";
    case SumOrder::kTree:
      return "tree";
    case SumOrder::kHalving:
      return "halving";
    case SumOrder::kUnknown:
      break;
  }
  return "unknown";
}

const char* to_string(Division division) {
  switch (division) {
    case Division::kNone:
      return "none";
    case Division::kBeforeMultiply:
      return "before-multiply";
    case Division::kBeforeDivide:
      return "before-divide";
    case Division::kAfterMultiply:
      return "after-multiply";
    case Division::kAfterDivide:
      return "after-divide";
    case Division::kOnce:
      return "once";
    case Division::kUnknown:
      break;
  }
  return "unknown";
}

int significand_bits(Accumulation accumulation) {
  switch (accumulation) {
    case Accumulation::kF64:
      return 53;
    case Accumulation::kF32:
      return 24;
    case Accumulation::kF16:
      return 11;
    case Accumulation::kBF16:
      return 8;
    case Accumulation::kUnknown:
      break;
  }
  return 0;
}

std::array<FingerprintValue, 10> to_fingerprints(const AuditRecord& audit) {
  using enum FingerprintKind;
  std::uint64_t codes = 0;
  int shift = 0;
  for (const std::uint8_t code :
       {static_cast<std::uint8_t>(audit.gradient), static_cast<std::uint8_t>(audit.accumulation),
        static_cast<std::uint8_t>(audit.expected), static_cast<std::uint8_t>(audit.order),
        static_cast<std::uint8_t>(audit.division), static_cast<std::uint8_t>(audit.repeat)}) {
    codes |= static_cast<std::uint64_t>(code) << shift;
    shift += 8;
  }
  constexpr UlpPercentiles kNone{kUnknownUlps, kUnknownUlps, kUnknownUlps, kUnknownUlps};
  const UlpPercentiles ulps = audit.ulps.value_or(kNone);
  return {fingerprint(kAuditElements, audit.elements),
          fingerprint(kAuditDiffering, audit.differing),
          fingerprint(kAuditWrong, audit.wrong),
          fingerprint(kAuditRelativeL2, std::bit_cast<std::uint64_t>(audit.relative_l2)),
          fingerprint(kAuditError, std::bit_cast<std::uint64_t>(audit.error_max)),
          fingerprint(kAuditCodes, codes),
          fingerprint(kAuditUlps50, ulps.p50),
          fingerprint(kAuditUlps90, ulps.p90),
          fingerprint(kAuditUlps99, ulps.p99),
          fingerprint(kAuditUlpsMax, ulps.max)};
}

std::optional<AuditRecord> audit_of(std::span<const FingerprintValue> fingerprints) {
  using enum FingerprintKind;
  const std::uint64_t* codes = find(fingerprints, kAuditCodes);
  const std::uint64_t* elements = find(fingerprints, kAuditElements);
  if (codes == nullptr || elements == nullptr) return std::nullopt;
  AuditRecord audit;
  audit.elements = *elements;
  if (const auto* v = find(fingerprints, kAuditDiffering)) audit.differing = *v;
  if (const auto* v = find(fingerprints, kAuditWrong)) audit.wrong = *v;
  if (const auto* v = find(fingerprints, kAuditRelativeL2)) {
    audit.relative_l2 = std::bit_cast<double>(*v);
  }
  if (const auto* v = find(fingerprints, kAuditError)) audit.error_max = std::bit_cast<double>(*v);
  audit.ulps = ulps_of(fingerprints);
  audit.gradient = code(*codes, 0, Accumulation::kBF16);
  audit.accumulation = code(*codes, 1, Accumulation::kBF16);
  audit.expected = code(*codes, 2, Accumulation::kBF16);
  audit.order = code(*codes, 3, SumOrder::kHalving);
  audit.division = code(*codes, 4, Division::kOnce);
  audit.repeat = code(*codes, 5, Repeat::kDifferent);
  return audit;
}

}  // namespace presum
