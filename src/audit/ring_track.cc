// SPDX-License-Identifier: Apache-2.0
#include "audit/inference.h"

namespace presum::audit {

RingTrack::RingTrack(std::uint32_t workers) : all_(all_of(workers)), alive_(all_) {}

void RingTrack::add(std::span<const std::uint64_t> masks) {
  for (const std::uint64_t mask : masks) {
    if ((alive_ & mask) == 0) {
      close();
      alive_ = mask == 0 ? all_ : mask;
      first_ = position_ + (mask == 0 ? 1 : 0);
    } else {
      alive_ &= mask;
    }
    reproduced_ += mask == all_;
    informative_ += mask != 0 && mask != all_;
    ++position_;
  }
}

void RingTrack::close() {
  if (credible()) {
    reproduced_ += informative_;
    if (pieces_.size() < kPiecesMax) pieces_.push_back(open_piece());
  }
  informative_ = 0;
}

Piece RingTrack::open_piece() const {
  return {first_, position_, static_cast<std::uint32_t>(std::countr_zero(alive_))};
}

std::uint64_t RingTrack::reproduced() const {
  return reproduced_ + (credible() ? informative_ : 0);
}

std::vector<Piece> RingTrack::pieces() const {
  auto pieces = pieces_;
  if (credible() && pieces.size() < kPiecesMax) pieces.push_back(open_piece());
  return pieces;
}

}  // namespace presum::audit
